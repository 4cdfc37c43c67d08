// The two kernels of moe/sm90_few on the emulator: gate, gate and up; down and the router.

#include <gtest/gtest.h>

#include <vector>

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

}  // namespace
}  // namespace dsv4
