// experts.h as models other than DeepSeek-V4 use it: f16 activations, GELU, no clamp, operands of
// tensor cores with f32 between the products.

#include "dsv4/base/error.h"
#if DSV4_CUDA
#include "dsv4/device/device.h"
#endif
#include "dsv4/ops/parts/experts/experts.h"
#include "dsv4/ops/parts/experts/experts_case.h"
#include "tests/harness/impl_count.h"
#include "tests/harness/op_check.h"
#include "tests/harness/weights.h"

namespace dsv4 {
namespace {

using test::one_token;

// They take experts of DeepSeek-V4 alone; experts_test has their cases.
const test::TestedElsewhere kOfDeepSeek{"cublaslt_fp8",   "sm90_few_e4m3", "sm90_few",
                                        "sm90_wide",      "sm90_grouped",  "sm90_grouped_e4m3",
                                        "sm90_many_e4m3", "sm90_image"};

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

// Experts of k-bit weights whose gate and up share a codebook. ids: of all slots; empty: random
// ones.
struct KbitCase {
  test::Arena arena;
  std::vector<ExpertWeights> weights;
  ExpertsArgs args;

  KbitCase(const test::ExpertsShape& s, int64_t inner, int64_t count, const test::StoredAs& gate_up,
           const test::StoredAs& down, const std::vector<int32_t>& ids = {}) {
    Rng rng(static_cast<uint64_t>(gate_up.bits * 977 + s.t * 31 + s.d + inner));
    auto w1 = test::random_stack(arena, rng, gate_up, count, inner, s.d);
    auto w3 = test::random_stack(arena, rng, gate_up, count, inner, s.d);
    const auto w2 = test::random_stack(arena, rng, down, count, s.d, inner);
    for (size_t e = 0; e < w1.size(); ++e) {
      if (!gate_up.e4m3_codebook) w3[e].codebook = w1[e].codebook;
      weights.push_back({w1[e], w3[e], w2[e]});
    }
    args = test::random_experts(arena, rng, s, weights);
    for (size_t i = 0; i < ids.size(); ++i)
      const_cast<int32_t*>(args.experts.as<int32_t>())[i] = ids[i];
    args.may_round_operands = true;
  }
};

// Roundings of operands are in operand_scale. Those of a codebook's values are the same for many
// weights, so a relative error of 2^-7 of the whole is possible with bf16: half of its square is
// the cosine's.
void check_kbit(KbitCase& c, const std::string& name) {
  const Context exact{.numerics = Numerics::kExact};
  experts.check(c.args);
  test::OpCase<ExpertsArgs> test{.name = name,
                                 .args = c.args,
                                 .outputs = {{"acc",
                                              c.args.acc,
                                              experts_oracle(exact, c.args),
                                              {.ulps = 4, .rel = 4e-6, .cosine = 3e-5},
                                              experts_magnitude(c.args)}},
                                 .one_token = one_token,
                                 .num_tokens = c.args.x.dim(0)};
  test.strided = [](ExpertsArgs& a, test::StridedCopy& copy) {
    copy(a.x), copy(a.experts), copy(a.weights), copy(a.addend), copy(a.acc);
  };
  // By name cuda_mma takes also what others compute faster.
  check_op(experts.impls, {.numerics = Numerics::kExact, .force_impl = "cuda_mma"}, c.arena, test);
}

// Rows and columns that are whole blocks and not; one K for gate and up and another for down; more
// pairs than one CTA of the plan stages.
TEST(ExpertsOfOtherModels, RoundedOperandsOfEveryK) {
  for (int bits = kMinKbit; bits <= kMaxKbit; ++bits) {
    for (const DType x : {DType::kBF16, DType::kF16}) {
      const auto check = [&](int64_t t, int64_t k, int64_t d, int64_t inner, int64_t count) {
        const test::StoredAs down{WeightFormat::kKbit, bits == 5 ? 2 : bits + 1};
        KbitCase c({.t = t, .k = k, .d = d, .x = x}, inner, count, {WeightFormat::kKbit, bits},
                   down);
        check_kbit(c, fmt::format("k{} {} t={} d={} i={} e={}", bits, name(x), t, d, inner, count));
      };
      check(0, 2, 64, 32, 3);
      check(1, 4, 256, 256, 9);
      check(9, 2, 288, 160, 5);
    }
  }
  const test::StoredAs stored{WeightFormat::kKbit, 3};
  KbitCase many({.t = 66, .k = 16, .d = 32}, 32, 33, stored, stored);
  check_kbit(many, "more pairs than are staged");
  KbitCase fp4({.t = 9, .k = 2, .d = 288}, 160, 5, {WeightFormat::kMxfp4}, {WeightFormat::kNvfp4});
  check_kbit(fp4, "mxfp4, nvfp4");
}

// Experts with 0, 1, 8, 9 and 17 pairs in one call, all tokens at one expert, an expert more than
// once in a row.
TEST(ExpertsOfOtherModels, RoundedOperandsOfAnyRouting) {
  constexpr int64_t kTokens = 35, kCount = 6;
  const int pairs_of[] = {17, 0, 8, 1, 9, 0};
  std::vector<int32_t> uneven(kTokens);
  for (int e = 0, next = 0; e < kCount; ++e)
    for (int i = 0; i < pairs_of[e]; ++i, ++next)
      uneven[static_cast<size_t>(next * 13 % kTokens)] = e;  // 13 and 35: coprime
  for (const bool e4m3 : {false, true}) {
    const test::StoredAs stored{WeightFormat::kKbit, 3, e4m3};
    KbitCase c({.t = kTokens, .k = 1, .d = 160}, 96, kCount, stored, stored, uneven);
    check_kbit(c, "uneven");
  }
  const test::StoredAs stored{WeightFormat::kKbit, 4};
  KbitCase one({.t = 19, .k = 2, .d = 256, .only = 3}, 256, 5, stored, stored);
  check_kbit(one, "all at one");
  KbitCase twice({.t = 3, .k = 5, .d = 96}, 64, 4, stored, stored,
                 {2, 0, 2, 2, 1, 3, 3, 3, 3, 3, 0, 1, 0, 1, 0});
  check_kbit(twice, "an expert more than once");
  KbitCase many({.t = 7, .k = 8, .d = 96}, 64, 600, stored, stored);
  check_kbit(many, "600 experts");
}

#if DSV4_CUDA
TEST(ExpertsOfOtherModels, DryRunOfRoundedOperands) {
  const std::unique_ptr<Device> device =
      Device::dry_run({.name = "H", .major = 9, .max_smem_per_block = 227 << 10});
  const Context exact{.numerics = Numerics::kExact, .device = device.get()};
  const test::StoredAs stored{WeightFormat::kKbit, 3};
  KbitCase c({.t = 65, .k = 2, .d = 96}, 64, 4, stored, stored);
  const Impl<ExpertsArgs>& impl = impl_of(experts, "cuda_kbit");
  const auto reason = [&](const ExpertsArgs& args, Context context) {
    const char* why = impl.reject(context, args);
    return std::string(why == nullptr ? "" : why);
  };
  Context named = exact;
  named.force_impl = impl.name;
  EXPECT_EQ(reason(c.args, named), "");
  EXPECT_EQ(choose(experts, named, c.args).name, impl.name);
  EXPECT_EQ(choose(experts, exact, c.args).name, "cuda_mma");
  KbitCase few({.t = 24, .k = 2, .d = 96}, 64, 4, stored, stored);
  EXPECT_EQ(choose(experts, exact, few.args).name, impl.name);
  EXPECT_EQ(reason(c.args, {.device = device.get()}), "official numerics");
  ExpertsArgs args = c.args;
  args.may_round_operands = false;
  EXPECT_EQ(reason(args, named), "operands must not be rounded");
  args = c.args;
  args.x.dtype = DType::kF32;
  EXPECT_EQ(reason(args, named), "for bf16 and f16 activations");
  std::vector<ExpertWeights> other = c.weights;
  for (ExpertWeights& e : other) e.w3.codebook = e.w2.codebook;
  args = c.args, args.stack = other;
  EXPECT_EQ(reason(args, named), "codebooks differ");
  other = c.weights;
  std::swap(other[0].w2.data, other[1].w2.data);
  args.stack = other;
  EXPECT_EQ(reason(args, named), "experts are not evenly spaced");
  Rng rng(1);
  test::Arena arena;
  other = c.weights;
  const auto w3 = test::random_stack(arena, rng, {WeightFormat::kKbit, 4}, 4, 64, 96);
  for (size_t e = 0; e < other.size(); ++e) other[e].w3 = w3[e];
  args.stack = other;
  EXPECT_EQ(reason(args, named), "codebooks differ");
}
#endif

}  // namespace
}  // namespace dsv4
