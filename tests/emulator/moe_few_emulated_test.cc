// The two kernels of moe/sm90_few on the emulator: gate, gate and up; down and the router.

#include <gtest/gtest.h>

#include <vector>

#include "dsv4/base/error.h"
#include "dsv4/ops/experts/experts_oracle.h"
#include "dsv4/ops/linear/linear_oracle.h"
#include "dsv4/ops/moe/sm90_few/call.cuh"
#include "dsv4/ops/oracle.h"
#include "dsv4/ops/router/router_oracle.h"
#include "tests/emulator/launch.h"
#include "tests/emulator/runs.h"
#include "tests/emulator/tensor_map.h"
#include "tests/emulator/touching.h"
#include "tests/harness/weights.h"

namespace dsv4 {
namespace {

namespace few = moe_kernel::sm90_few;
using few_gemm::Format;
using test::Arena;

enum class Choice { kLearned, kHash32, kHash64 };

struct Scene {
  int64_t t, d, inner, e, k;
  int num_sms = 2;
  Choice choice = Choice::kLearned;
};

constexpr int64_t kVocab = 20;

struct Case {
  Arena arena;
  std::vector<ExpertWeights> shared;
  MoeArgs args;
  few::Middle middle;

  explicit Case(const Scene& s) {
    Rng rng(static_cast<uint64_t>(s.t * 1000 + s.d + s.inner));
    const test::StoredAs fp8{WeightFormat::kFp8Block};
    shared = {{.w1 = test::random_weight(arena, rng, fp8, s.inner, s.d),
               .w3 = test::random_weight(arena, rng, fp8, s.inner, s.d),
               .w2 = test::random_weight(arena, rng, fp8, s.d, s.inner)}};
    const TensorView x = arena.input(DType::kBF16, {s.t, s.d});
    const TensorView ids = arena.input(DType::kI32, {s.t});
    test::fill_normal(x, rng);
    test::fill_ints(ids, rng, 0, kVocab);
    args = {.x = x,
            .ids = ids,
            .gate = test::random_weight(arena, rng, {WeightFormat::kBF16}, s.e, s.d),
            .shared = shared,
            .experts_per_token = s.k,
            .route_scale = 1.5f,
            .swiglu_limit = 1.5f,
            .acc = {TensorMeta::contiguous(DType::kF32, {s.t, s.d}), nullptr}};
    if (s.choice == Choice::kLearned) {
      const TensorView bias = arena.input(DType::kF32, {s.e});
      test::fill_normal(bias, rng, 0.2);
      args.bias = bias;
    } else {
      const TensorView table =
          arena.input(s.choice == Choice::kHash32 ? DType::kI32 : DType::kI64, {kVocab, s.k});
      test::fill_ints(table, rng, 0, s.e);
      args.tid2eid = table;
    }
    middle = few::make_middle(args, [&](DType dtype, std::initializer_list<int64_t> shape) {
      return arena.output(dtype, shape);
    });
  }
};

CUtensorMap make_map(const TmaBox& box) {
  return emulator::make_tma_map(box);
}

emulator::Kernel inputs_kernel(const Case& c, int num_sms) {
  const few::InputTargets targets(c.args, c.middle);
  const few_gemm::Pair pair = few::pair_of_inputs(c.args, targets, num_sms);
  emulator::Kernel kernel{{.grid = {static_cast<int>(pair.ctas()),
                                    static_cast<int>(ceil_div(pair.fp8.tokens, pair.tokens))},
                           .block = few_gemm::kThreads,
                           .cluster = pair.split.fp8.ranks(),
                           .shared = static_cast<size_t>(pair.shared()),
                           .pdl = true,
                           .resident = 2},
                          {}};
  few_gemm::with_tokens<Format::kFp8>(pair.tokens, [&](auto config) {
    kernel.body = [params = few::make_input_params(
                       pair, c.args, targets, c.middle,
                       few_gemm::Activations{.x = c.args.x, .quantize = true}, make_map)] {
      few::inputs_kernel<decltype(config)::kTokens>()(params);
    };
  });
  return kernel;
}

emulator::Kernel down_kernel(const Case& c, int num_sms) {
  const few_gemm::Product p = few::product_of_w2(c.args, c.middle);
  const few_gemm::Shape shape = few_gemm::shape_of(p.weight, p.in, 1);
  const few_gemm::Split split = few_gemm::make_split(shape, num_sms);
  const int tokens = few_gemm::tile_tokens(shape.tokens);
  const few::DownParams params =
      few::make_down_params(p, few::router_args(c.args, c.middle), split, tokens, make_map);
  emulator::Kernel kernel{
      {.grid = {params.product_ctas + params.routing_ctas,
                static_cast<int>(ceil_div(shape.tokens, tokens))},
       .block = few_gemm::kThreads,
       .cluster = split.ranks(),
       .shared = static_cast<size_t>(few_gemm::Layout(shape.format, tokens, split).bytes),
       .pdl = true,
       .resident = 2},
      {}};
  few_gemm::with_tokens<Format::kFp8>(tokens, [&](auto config) {
    kernel.body = [params] { few::down_kernel<decltype(config)::kTokens>(params); };
  });
  return kernel;
}

// y of the shared expert is bf16 and compared as such; the choices are those of the oracle, whose
// keys are far enough apart.
void check(const Scene& s) {
  SCOPED_TRACE(fmt::format("t {} d {} inner {} e {} sms {}", s.t, s.d, s.inner, s.e, s.num_sms));
  Case c(s);
  const std::vector<double> logits = linear_oracle({.x = c.args.x, .weight = c.args.gate});
  RouterArgs router = few::router_args(c.args, c.middle);
  const Buffer stored = oracle::stored(DType::kF32, {s.t, s.e}, logits);
  router.logits = stored;
  const RouterAnswer routed = router_oracle(router);
  const Buffer zeros(DType::kF32, {s.t, s.d});
  const std::vector<double> y = experts_oracle(
      {}, {.x = c.args.x, .stack = c.shared, .swiglu_limit = c.args.swiglu_limit, .acc = zeros});
  const std::vector<emulator::Kernel> kernels{
      emulator::touching({c.args.x}), inputs_kernel(c, s.num_sms), down_kernel(c, s.num_sms),
      inputs_kernel(c, s.num_sms), down_kernel(c, s.num_sms)};
  emulator::check_runs(
      c.arena, 4, [&](int seed) { emulator::launch_stream(kernels, static_cast<uint64_t>(seed)); },
      [&] {
        EXPECT_EQ(test::compare(c.middle.logits, logits, {.ulps = 4, .rel = 8e-6}), "");
        EXPECT_EQ(test::compare(c.middle.chosen, routed.experts, {.ulps = 0}), "");
        EXPECT_EQ(test::compare(c.middle.share, routed.weights, {.rel = 8e-6}), "");
        // As in experts_test.cc, and one bf16 step for the store.
        EXPECT_EQ(test::compare(c.middle.y, y, {.ulps = 1.01, .rel = 0.02, .cosine = 5e-6}), "");
      });
}

TEST(MoeFewEmulated, Learned) {
  check({.t = 1, .d = 128, .inner = 128, .e = 6, .k = 2});
  check({.t = 3, .d = 640, .inner = 256, .e = 70, .k = 3, .num_sms = 8});
  check({.t = 9, .d = 256, .inner = 128, .e = 300, .k = 6, .num_sms = 1});
  check({.t = 35, .d = 256, .inner = 128, .e = 40, .k = 6, .num_sms = 2});
}

TEST(MoeFewEmulated, Hash) {
  check({.t = 2, .d = 128, .inner = 128, .e = 40, .k = 6, .choice = Choice::kHash32});
  check({.t = 21, .d = 128, .inner = 256, .e = 40, .k = 6, .choice = Choice::kHash64});
}

}  // namespace
}  // namespace dsv4
