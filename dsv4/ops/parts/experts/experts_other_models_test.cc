// experts.h as models other than DeepSeek-V4 use it: f16 activations, GELU, no clamp.

#include "dsv4/base/error.h"
#include "dsv4/ops/parts/experts/experts.h"
#include "dsv4/ops/parts/experts/experts_case.h"
#include "tests/harness/impl_count.h"
#include "tests/harness/op_check.h"
#include "tests/harness/weights.h"

namespace dsv4 {
namespace {

// They take experts of DeepSeek-V4 alone; experts_test has their cases.
const test::TestedElsewhere kOfDeepSeek{"cublaslt_fp8", "sm90_few_e4m3", "sm90_few",
                                        "sm90_wide",    "sm90_grouped",  "sm90_grouped_e4m3",
                                        "cuda_mma"};

ExpertsArgs one_token(const ExpertsArgs& a, int64_t i) {
  ExpertsArgs one = a;
  one.x = a.x.slice(0, i, i + 1);
  one.experts = a.experts.slice(0, i, i + 1), one.weights = a.weights.slice(0, i, i + 1);
  one.acc = a.acc.slice(0, i, i + 1);
  return one;
}

// The tolerance is that of Experts.ExactAgreesWithOracle, for sums of up to 224 terms.
void check_activation(GateActivation activation, float limit, const test::StoredAs& stored) {
  constexpr int64_t kTokens = 5, kD = 96, kInner = 224, kExperts = 4;
  test::Arena arena;
  Rng rng(static_cast<uint64_t>(activation) + 7);
  const auto w1 = test::random_stack(arena, rng, stored, kExperts, kInner, kD);
  const auto w3 = test::random_stack(arena, rng, stored, kExperts, kInner, kD);
  const auto w2 = test::random_stack(arena, rng, stored, kExperts, kD, kInner);
  std::vector<ExpertWeights> weights;
  for (size_t e = 0; e < w1.size(); ++e) weights.push_back({w1[e], w3[e], w2[e]});
  ExpertsArgs args =
      test::random_experts(arena, rng, {.t = kTokens, .k = 2, .d = kD, .x = DType::kF16}, weights);
  args.activation = activation, args.swiglu_limit = limit, args.add = false;
  const Context exact{.numerics = Numerics::kExact};
  experts.check(args);
  check_op(
      experts.impls, exact, arena,
      test::OpCase<ExpertsArgs>{
          .name = fmt::format("activation {} limit {}", static_cast<int>(activation), limit),
          .args = args,
          .outputs = {{"acc", args.acc, experts_oracle(exact, args), {.ulps = 4, .rel = 4e-6}}},
          .one_token = one_token,
          .num_tokens = kTokens});
}

TEST(ExpertsOfOtherModels, AgreeWithOracle) {
  for (const GateActivation activation :
       {GateActivation::kSilu, GateActivation::kGelu, GateActivation::kGeluTanh}) {
    check_activation(activation, 0.f, {WeightFormat::kKbit, 3});
    check_activation(activation, 0.7f, {WeightFormat::kNvfp4});
  }
}

}  // namespace
}  // namespace dsv4
