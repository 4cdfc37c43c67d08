// experts_fetch/sm90 on the emulator: the state of the CPU after every step, and every expert's
// bytes where its address says, also when the step after follows at once.

#include <gtest/gtest.h>

#include "dsv4/ops/parts/experts_fetch/experts_fetch_case.h"
#include "dsv4/ops/parts/experts_fetch/sm90/call.cuh"
#include "dsv4/ops/parts/experts_fetch/sm90/kernels.cuh"
#include "tests/emulator/launch.h"
#include "tests/emulator/touching.h"

namespace dsv4 {
namespace {

namespace sm90 = experts_fetch_kernel::sm90;
using test::FetchCase;
using test::FetchShape;

// What the kernels before and after a call write and read.
std::vector<ConstTensorView> touched(const ExpertsFetchArgs& a) {
  return {a.experts,   a.memory, a.transient, a.places,   a.uses,   a.place_of,
          a.expert_in, a.step,   a.totals,    a.counters, a.turn_of};
}

void run_emulated(const ExpertsFetchArgs& args, int ctas, uint64_t seed) {
  Scratch scratch;
  const sm90::Call call = sm90::make_call(args, scratch);
  emulator::launch_stream(
      {emulator::touching(touched(args)),
       {{.block = kWarp, .pdl = true}, [p = call.decide] { sm90::decide_kernel(p); }},
       {{.grid = ctas,
         .block = sm90::kThreads,
         .shared = sizeof(sm90::Shared),
         .pdl = true,
         .resident = 2},
        [p = call.copy] { sm90::copy_kernel(p); }},
       emulator::touching(touched(args))},
      seed);
}

void check_steps(const FetchShape& s, int steps) {
  SCOPED_TRACE(testing::Message() << s.experts << " experts of " << s.bytes << " bytes");
  FetchCase c(s), cpu(s);
  Rng rng(9);
  test::Choices choices(rng, static_cast<int>(s.experts), 0.88, 0.3);
  for (int i = 0; i < steps; ++i) {
    const std::vector<int32_t> ids = choices.step(static_cast<int>(s.t), static_cast<int>(s.k));
    c.choose(ids), cpu.choose(ids);
    c.arena.freeze();
    ASSERT_NO_THROW(run_emulated(c.args, 1 + i % 5, static_cast<uint64_t>(i)));
    c.arena.verify();
    experts_fetch({}, cpu.args);
    ASSERT_EQ(c.broken(), "") << "step " << i;
    const auto same = [](const TensorView& a, const TensorView& b) {
      return std::equal(a.data, a.data + a.bytes(), b.data);
    };
    ASSERT_TRUE(same(c.args.uses, cpu.args.uses)) << "step " << i;
    ASSERT_TRUE(same(c.args.place_of, cpu.args.place_of)) << "step " << i;
    ASSERT_TRUE(same(c.args.expert_in, cpu.args.expert_in)) << "step " << i;
    ASSERT_TRUE(same(c.args.memory, cpu.args.memory)) << "step " << i;
    ASSERT_TRUE(same(c.args.transient, cpu.args.transient)) << "step " << i;
    ASSERT_TRUE(same(c.args.totals, cpu.args.totals)) << "step " << i;
    ASSERT_TRUE(same(c.args.counters, cpu.args.counters)) << "step " << i;
    ASSERT_TRUE(same(c.args.turn_of, cpu.args.turn_of)) << "step " << i;
  }
}

// Fewer experts than lanes, and more; one strip, a whole number of strips, a short last one.
TEST(ExpertsFetchEmulated, HasTheStateOfTheCpu) {
  constexpr int64_t kStrip = sm90::kStripBytes;
  check_steps({.experts = 9, .fixed = 2, .slots = 3, .transient = 1, .bytes = 48, .t = 1, .k = 4},
              25);
  check_steps({.experts = 70, .fixed = 0, .slots = 40, .transient = 2, .bytes = 16, .t = 8, .k = 6},
              25);
  check_steps(
      {.experts = 5, .fixed = 0, .slots = 2, .transient = 1, .bytes = 2 * kStrip, .t = 1, .k = 3},
      8);
  check_steps({.experts = 6,
               .fixed = 1,
               .slots = 3,
               .transient = 1,
               .bytes = 5 * kStrip + 64,
               .t = 2,
               .k = 3},
              8);
}

// The order of events changes nothing: the same step with 12 seeds.
TEST(ExpertsFetchEmulated, IsTheSameForAnyOrderOfEvents) {
  std::vector<std::byte> first;
  for (int seed = 0; seed < 12; ++seed) {
    FetchCase c({.experts = 40,
                 .fixed = 0,
                 .slots = 6,
                 .transient = 2,
                 .bytes = sm90::kStripBytes + 16,
                 .t = 2,
                 .k = 6});
    c.choose({1, 5, 7, 33, 39, 2, 5, 8, 30, 31, 38, 0});
    ASSERT_NO_THROW(run_emulated(c.args, 3, static_cast<uint64_t>(seed)));
    const auto* counters = c.args.counters.as<int64_t>();
    EXPECT_EQ(std::vector<int64_t>(counters, counters + 3), (std::vector<int64_t>{0, 8, 3}));
    const TensorView& memory = c.args.memory;
    if (seed == 0) first.assign(memory.data, memory.data + memory.bytes());
    EXPECT_TRUE(std::equal(first.begin(), first.end(), memory.data)) << seed;
  }
}

}  // namespace
}  // namespace dsv4
