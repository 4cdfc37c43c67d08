// Implementation sm90_few of index_select.h on the emulator, launched early, between a kernel that
// writes its inputs and one that reads its rows, against the oracle.

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "dsv4/base/error.h"
#include "dsv4/ops/index_select/index_select_oracle.h"
#include "dsv4/ops/index_select/sm90_few/kernel.cuh"
#include "dsv4/ops/indexer/random_case_test.h"
#include "tests/emulator/launch.h"
#include "tests/emulator/runs.h"
#include "tests/emulator/touching.h"

namespace dsv4 {
namespace {

namespace few = index_select_kernel::sm90_few;
using emulator::Kernel;
using emulator::touching;
using test::Arena;
using test::IndexShape;

template <class C>
void run_emulated(const IndexSelectArgs& args, uint64_t seed) {
  const few::Params p = few::make_params(args);
  const Kernel kernel{{.grid = C::kCtas * static_cast<int>(args.q.dim(0)),
                       .block = C::kThreads,
                       .cluster = C::kCtas,
                       .shared = static_cast<size_t>(few::shared_bytes<C>(p)),
                       .pdl = true,
                       .resident = 2},
                      [&] { few::select_kernel<C, bf16>(p); }};
  emulator::launch_stream(
      {touching({args.q, args.weights, args.pages, args.sequence, args.visible, args.indices}),
       kernel, touching({args.indices})},
      seed);
}

// All values are small integers, so scores are exact and many are equal. Both sizes of clusters.
void check(IndexShape shape, int64_t k, bool all_equal = false) {
  shape.exact_sums = true;
  Arena arena;
  Rng rng(static_cast<uint64_t>(shape.t * 31 + shape.h * 7 + shape.n + k));
  const IndexScoresArgs scores = test::random_index_args(arena, rng, shape);
  if (all_equal)
    std::fill_n(const_cast<std::byte*>(scores.weights.data), scores.weights.bytes(), std::byte{});
  const IndexSelectArgs args{.q = scores.q,
                             .weights = scores.weights,
                             .weight_scale = scores.weight_scale,
                             .keys = scores.keys,
                             .pages = scores.pages,
                             .sequence = scores.sequence,
                             .visible = scores.visible,
                             .max_visible = shape.n,
                             .indices = arena.output(DType::kI32, {shape.t, k})};
  const std::vector<double> want = index_select_oracle(Context{}, args);
  SCOPED_TRACE(fmt::format("{} queries of {} heads, {} of {}", shape.t, shape.h, k, shape.n));
  emulator::check_runs(
      arena, 4,
      [&](int i) {
        const auto seed = static_cast<uint64_t>(i);
        i % 2 == 0 ? run_emulated<few::Short>(args, seed) : run_emulated<few::LongWide>(args, seed);
      },
      [&] { EXPECT_EQ(test::compare(args.indices, want, {.ulps = 0}), ""); });
}

TEST(IndexSelectEmulated, AgreesWithOracle) {
  check({.t = 2, .h = 16, .n = 300}, 128);
  check({.t = 3, .h = 6, .n = 90, .page_entries = 16}, 17);
  check({.t = 1, .h = 9, .n = 1100}, 512);  // several tiles of a warp
}

// A row too many would be outside of the tensor.
TEST(IndexSelectEmulated, TiesGoToTheFirst) {
  check({.t = 1, .h = 4, .n = 300}, 129, true);
}

TEST(IndexSelectEmulated, AsManyAsThereAreOrMore) {
  check({.t = 2, .h = 4, .n = 40}, 64);
  check({.t = 1, .h = 4, .n = 40}, 40);
  check({.t = 1, .h = 4, .n = 1}, 3);
}

}  // namespace
}  // namespace dsv4
