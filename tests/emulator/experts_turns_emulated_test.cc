// Experts in turns (ops/parts/experts/expert_turns.h) by the kernels for few tokens, on the
// emulator: turns that share their places, and experts_fetch beside the first of two.
//
// Faults that were put back and found: experts of all turns in each; experts that come with the
// step in turn 0; the wait of turn 1 skipped, so that copies come after it; tokens of pairs of
// other turns in the list of a kernel of its own; a slot taken from an expert of the step.

#include <gtest/gtest.h>

#include <cstring>
#include <stdexcept>
#include <vector>

#include "dsv4/base/error.h"
#include "dsv4/ops/parts/experts_fetch/experts_fetch_case.h"
#include "dsv4/ops/parts/experts_fetch/sm90/call.cuh"
#include "dsv4/ops/parts/experts_fetch/sm90/kernels.cuh"
#include "tests/emulator/experts_few_runs.h"

namespace dsv4 {
namespace {

namespace sm90 = experts_fetch_kernel::sm90;
using emulator::E4M3, emulator::F16, emulator::Fp4, emulator::Kernel, emulator::kFewRuns;
using emulator::result_of, emulator::Run, emulator::Wide;
using test::FetchCase;
using test::ImagesCase;
using test::ImagesShape;

// Turns whose experts share their memory: the bits of all experts at once.
template <class Kernels>
void expect_same_bits_in_turns(const ImagesShape& shape, const test::ImageSource& source) {
  for (const int turns : {1, 2, 5}) {
    ImagesCase c(shape, source, source);
    const std::vector<float> together = result_of<Kernels>(c, shape.t, kFewRuns[1]);
    emulator::ExpertsInTurns in_turns(c.arena, c.args.stack.images(), turns, 5);
    c.args.stack = in_turns.images();
    for (const Run& how : kFewRuns)
      EXPECT_TRUE(result_of<Kernels>(c, shape.t, how, &in_turns) == together)
          << "K=" << source.bits << " t=" << shape.t << ", " << turns << " turns, run " << how.seed;
  }
}

// Pairs that kernels list themselves, and pairs that a kernel lists.
TEST(ExpertsTurnsEmulated, HaveTheBitsOfAllAtOnce) {
  const ImagesShape few{.t = 3, .k = 2, .e = 5, .d = 288, .inner = 96};
  const ImagesShape listed{.t = 20, .k = 3, .e = 5, .d = 160, .inner = 96};
  expect_same_bits_in_turns<F16<3>>(few, 3);
  expect_same_bits_in_turns<E4M3<3>>(few, 3);
  expect_same_bits_in_turns<E4M3<3>>(listed, 3);
  expect_same_bits_in_turns<Fp4<WeightFormat::kMxfp4>>(listed, WeightFormat::kMxfp4);
  expect_same_bits_in_turns<Wide<2>>({.t = 2, .k = 2, .e = 3, .d = 5216, .inner = 32}, 2);
}

class Lists final : public FetchBeside {
 public:
  explicit Lists(test::Arena& arena, int64_t e)
      : lists_{.turn_of = arena.inout(DType::kI32, {e}),
               .moves = arena.inout(DType::kI32, {e, 2}),
               .count = arena.inout(DType::kI32, {1})} {}
  const FetchLists& lists() const override { return lists_; }
  bool begin(int turn) override { return turn == 1; }
  void end(int) override {}
  Device& fork() override { throw std::logic_error("there is no device"); }
  void join() override {}

 private:
  FetchLists lists_;
};

// A layer whose experts have fewer places than there are, step by step.
struct Fetched {
  ImagesCase c;
  FetchCase f;
  Lists beside;
  Rng rng{11};

  Fetched(const ImagesShape& s, const test::ImageSource& source, int64_t slots, int64_t transient)
      : c(s, source, source),
        f({.experts = s.e,
           .fixed = 0,
           .slots = slots,
           .transient = transient,
           .bytes = align_up(image_bytes(), 16),
           .t = s.t,
           .k = s.k}),
        beside(f.arena, s.e) {
    const ExpertImages& images = c.args.stack.images();
    for (int64_t e = 0; e < s.e; ++e) {
      auto* home = reinterpret_cast<std::byte*>(f.args.homes.as<int64_t>()[e]);
      for (const ConstTensorView& from : {images.gate_up_bytes, images.down_bytes}) {
        std::memcpy(home, from.row<std::byte>(e), static_cast<size_t>(from.dim(1)));
        home += from.dim(1);
      }
    }
    f.args.beside = &beside, f.args.turn_of = beside.lists().turn_of;
  }
  int64_t image_bytes() const {
    const ExpertImages& images = c.args.stack.images();
    return images.gate_up.bytes() + images.down.bytes();
  }
  void choose() {
    std::vector<int32_t> ids(static_cast<size_t>(c.args.experts.numel()));
    for (int32_t& id : ids) id = static_cast<int32_t>(rng.below(f.shape.experts));
    f.choose(ids);
    std::copy(ids.begin(), ids.end(), const_cast<int32_t*>(c.args.experts.as<int32_t>()));
  }
};

// after: the kernels of turn 0 before the copies, of two. What is enqueued on two streams may come
// in any of these orders.
template <class Kernels>
std::vector<float> step_beside(Fetched& s, const Run& how, size_t after) {
  ExpertsArgs args = s.c.args;
  ExpertImages images = args.stack.images();
  images.gate_up_bytes.data = nullptr, images.down_bytes.data = nullptr;
  images.places = s.f.args.places, images.turns = &s.beside;
  args.stack = images;
  Scratch scratch;
  const sm90::Call fetch = sm90::make_call(s.f.args, scratch);
  const auto call = experts_kernel::make_call(args, how.ctas, Kernels::kReader, scratch);
  std::vector<Kernel> turns[2];
  for (int turn = 0; turn < 2; ++turn) {
    experts_kernel::Call of_turn = call.of_turn(turn, 1 - turn);
    of_turn.gate_up.starts_early = false;
    const Run run{how.seed, of_turn.gate_up.ctas};
    turns[turn] = {emulator::kernel<Kernels, true>(of_turn.gate_up, run),
                   emulator::kernel<Kernels, false>(of_turn.down, run)};
    if (of_turn.needs_list())
      turns[turn].insert(turns[turn].begin(),
                         emulator::list_of(experts_kernel::choices_of(args, turn), of_turn.lists));
  }
  turns[0].insert(turns[0].end() - static_cast<ptrdiff_t>(2 - after),
                  {{.grid = 3, .block = sm90::kThreads, .shared = sizeof(sm90::Shared)},
                   [&] { sm90::copy_kernel(fetch.copy); }});
  std::vector<Kernel> kernels{{{.block = kWarp}, [&] { sm90::decide_kernel(fetch.decide); }}};
  for (const auto& turn : turns) kernels.insert(kernels.end(), turn.begin(), turn.end());
  std::fill_n(args.acc.as<float>(), args.acc.numel(), 0.f);
  emulator::launch_stream(kernels, how.seed);
  emulator::combine(args, call);
  return {args.acc.as<float>(), args.acc.as<float>() + args.acc.numel()};
}

// slots, transient: so few that places are taken from others and experts are read at home
template <class Kernels>
void check_beside(const ImagesShape& shape, const test::ImageSource& source, int64_t slots,
                  int64_t transient) {
  Fetched s(shape, source, slots, transient);
  for (int i = 0; i < 9; ++i) {
    s.choose();
    const std::vector<float> all = result_of<Kernels>(s.c, shape.t, kFewRuns[1]);
    const Run& how = kFewRuns[static_cast<size_t>(i) % std::size(kFewRuns)];
    ASSERT_TRUE(step_beside<Kernels>(s, how, static_cast<size_t>(i % 3)) == all)
        << "K=" << source.bits << " t=" << shape.t << " step " << i;
  }
  const auto* counters = s.f.args.counters.as<int64_t>();
  for (int i = 0; i < 3; ++i) EXPECT_GT(counters[i], 0) << i;
}

TEST(ExpertsTurnsEmulated, CopiesMayComeBeforeOrAfterTheExpertsThatAreThere) {
  const ImagesShape few{.t = 4, .k = 2, .e = 12, .d = 160, .inner = 64};
  const ImagesShape listed{.t = 12, .k = 3, .e = 20, .d = 160, .inner = 64};
  check_beside<E4M3<3>>(few, 3, 4, 1);
  check_beside<E4M3<3>>(listed, 3, 9, 2);
  check_beside<Fp4<WeightFormat::kMxfp4>>(listed, WeightFormat::kMxfp4, 9, 2);
  check_beside<F16<3>>(few, 3, 4, 1);
}

}  // namespace
}  // namespace dsv4
