// The two kernels of moe/sm90_few on the emulator: gate, gate and up; down and the router.

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "dsv4/ops/gemm/sm90/large_m/call.cuh"
#include "dsv4/ops/model/moe/sm90_few/many.cuh"
#include "dsv4/ops/oracle.h"
#include "dsv4/ops/parts/experts/experts_case.h"
#include "dsv4/ops/parts/linear/linear_case.h"
#include "dsv4/ops/parts/router/router_case.h"
#include "tests/emulator/moe_case.h"
#include "tests/emulator/runs.h"
#include "tests/emulator/touching.h"

namespace dsv4 {
namespace {

namespace few = moe_kernel::sm90_few;
using test::Choice;
using Scene = test::MoeScene;

// y of the shared expert is bf16 and compared as such; the choices are those of the oracle, whose
// keys are far enough apart.
void check(const Scene& s) {
  SCOPED_TRACE(fmt::format("t {} d {} inner {} e {} sms {} {}", s.t, s.d, s.inner, s.e, s.num_sms,
                           name(s.stored)));
  test::MoeCase c(s);
  const few::Intermediates& temporaries = c.temporaries;
  const std::vector<double> logits = linear_oracle({.x = c.args.x, .weight = c.args.gate});
  RouterArgs router = few::router_args(c.args, temporaries);
  const Buffer stored = oracle::stored(DType::kF32, {s.t, s.e}, logits);
  router.logits = stored;
  const RouterAnswer routed = router_oracle(router);
  const Buffer zeros(DType::kF32, {s.t, s.d});
  const std::vector<double> y = experts_oracle(
      {}, {.x = c.args.x, .stack = c.shared, .swiglu_limit = c.args.swiglu_limit, .acc = zeros});
  std::vector<emulator::Kernel> kernels{emulator::touching({c.args.x})};
  for (int i = 0; i < 2; ++i) {
    kernels.push_back(test::moe_inputs(c, temporaries, s.num_sms));
    if (test::takes_codes(c)) kernels.push_back(test::quantize_hidden(c));
    kernels.push_back(test::moe_down(c, temporaries, s.num_sms));
  }
  emulator::check_runs(
      c.arena, 4, [&](int seed) { emulator::launch_stream(kernels, static_cast<uint64_t>(seed)); },
      [&] {
        EXPECT_EQ(test::compare(temporaries.logits, logits, {.ulps = 4, .rel = 8e-6}), "");
        EXPECT_EQ(test::compare(temporaries.chosen, routed.experts, {.ulps = 0}), "");
        EXPECT_EQ(test::compare(temporaries.share, routed.weights, {.rel = 8e-6}), "");
        // As in experts_test.cc, and one bf16 step for the store.
        EXPECT_EQ(test::compare(temporaries.y, y, {.ulps = 1.01, .rel = 0.02, .cosine = 5e-6}), "");
      });
}

TEST(MoeFewEmulated, Learned) {
  check({.t = 1, .d = 128, .inner = 128, .e = 6, .k = 2});
  check({.t = 3, .d = 640, .inner = 256, .e = 70, .k = 3, .num_sms = 8});
  check({.t = 9, .d = 256, .inner = 128, .e = 300, .k = 6, .num_sms = 1});
  check({.t = 30, .d = 256, .inner = 128, .e = 40, .k = 6, .num_sms = 2});
  check({.t = 35, .d = 256, .inner = 128, .e = 40, .k = 6, .num_sms = 2});
  check({.t = 64, .d = 640, .inner = 256, .e = 40, .k = 6, .num_sms = 1});
}

TEST(MoeFewEmulated, BitPlanes) {
  const test::StoredAs k5{WeightFormat::kKbit, 5, true}, k4{WeightFormat::kKbit, 4, true};
  check({.t = 1, .d = 512, .inner = 256, .e = 6, .k = 2, .stored = k5});
  check({.t = 2, .d = 768, .inner = 512, .e = 70, .k = 3, .num_sms = 8, .stored = k4});
  check({.t = 7, .d = 256, .inner = 256, .e = 40, .k = 6, .num_sms = 1, .stored = k5});
  check(
      {.t = 11, .d = 1024, .inner = 256, .e = 40, .k = 6, .choice = Choice::kHash32, .stored = k5});
}

TEST(MoeFewEmulated, Hash) {
  check({.t = 2, .d = 128, .inner = 128, .e = 40, .k = 6, .choice = Choice::kHash32});
  check({.t = 21, .d = 128, .inner = 256, .e = 40, .k = 6, .choice = Choice::kHash64});
}

// Products of many tokens and SwiGLU in launches of their own have the bits of the first kernel.
TEST(MoeFewEmulated, ManyTokensHaveTheBitsOfFew) {
  namespace large = gemm::large_m;
  constexpr int kSms = 4;
  const test::MoeCase c({.t = 50, .d = 640, .inner = 384, .e = 70, .k = 3, .num_sms = kSms});
  const few::Intermediates& temporaries = c.temporaries;
  const int64_t t = c.args.x.dim(0), d = c.args.x.dim(1), inner = temporaries.hidden.dim(1);
  const auto bits = [&] {
    std::vector<std::byte> all;
    for (const TensorView& view : {temporaries.hidden, temporaries.logits})
      all.insert(all.end(), view.data, view.data + view.bytes());
    return all;
  };
  emulator::launch_stream({test::moe_inputs(c, temporaries, kSms)}, 1);
  const std::vector<std::byte> want = bits();
  std::fill_n(temporaries.hidden.data, temporaries.hidden.bytes(), std::byte{0xee});
  std::fill_n(temporaries.logits.data, temporaries.logits.bytes(), std::byte{0xee});
  const Buffer gate_up(DType::kBF16, {t, 2 * inner});
  few::InputTargets targets(c.args, temporaries);
  const gemm::TwoFormats formats = few::formats_of_inputs(c.args, targets, kSms);
  targets.all[0].out = gate_up.view().slice(1, 0, inner);
  targets.all[1].out = gate_up.view().slice(1, inner, 2 * inner);
  const auto product = [&](auto config, const gemm::Activations& in, const gemm::Split& split) {
    using C = decltype(config);
    const large::Params params = large::make_target_params(targets.all, C::kFormat, in, d,
                                                           split.rank_bits, test::emulated_map);
    return emulator::Kernel{{.grid = large::num_ctas(params, kSms),
                             .block = large::kThreads,
                             .cluster = large::kCtas,
                             .shared = sizeof(large::Shared<C>),
                             .pdl = true},
                            [params] { large::large_m_kernel<C, large::StoreSums>(params); }};
  };
  const few::HiddenParams hidden{.gate_up = gate_up.view().as<bf16>(),
                                 .hidden = temporaries.hidden.as<bf16>(),
                                 .hidden_stride = temporaries.hidden.row_stride(),
                                 .inner = static_cast<int>(inner),
                                 .limit = c.args.swiglu_limit};
  ASSERT_GT(hidden.limit, 0);
  emulator::launch_stream(
      {product(large::Config<gemm::Format::kFp8>{}, c.x, formats.split.q8),
       product(large::Config<gemm::Format::kBf16>{}, {.x = c.args.x}, formats.split.bf16),
       {{.grid = static_cast<int>(t), .block = few::kHiddenThreads, .pdl = true, .resident = 2},
        [hidden] { few::hidden_kernel(hidden); }}},
      2);
  EXPECT_TRUE(bits() == want);
}

}  // namespace
}  // namespace dsv4
