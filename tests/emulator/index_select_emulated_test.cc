// Implementation sm90_few of index_select.h on the emulator, launched early, between a kernel that
// writes its inputs and one that reads its rows, against the oracle.

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "dsv4/base/error.h"
#include "dsv4/ops/model/index_select/index_select_case.h"
#include "dsv4/ops/model/index_select/sm90_few/gather.cuh"
#include "dsv4/ops/model/index_select/sm90_few/kernel.cuh"
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

// The bytes of the keys that a launch with `settled` may not read early.
std::vector<ConstTensorView> fresh_keys(const IndexSelectArgs& args) {
  std::vector<ConstTensorView> views;
  const IndexPool& keys = args.keys;
  for (int64_t t = 0; t < args.q.dim(0); ++t) {
    const auto* pages = args.pages.row<int32_t>(args.sequence.as<int32_t>()[t]);
    for (int s = args.settled.as<int32_t>()[t]; s < args.visible.as<int32_t>()[t]; ++s) {
      const int64_t page = pages[s / keys.page_entries], entry = s % keys.page_entries;
      const std::byte* from = keys.pages.slice(0, page, page + 1).data;
      const auto view = [&](int64_t at, int64_t bytes) {
        views.push_back({TensorMeta::contiguous(DType::kU8, {bytes}), from + at});
      };
      view(keys.layout.code_offset(entry), keys.layout.code_bytes());
      view(keys.layout.scale_offset(keys.page_entries, entry), keys.layout.scale_bytes());
    }
  }
  return views;
}

template <class C>
Kernel kernel_of(const IndexSelectArgs& args, void (*kernel)(few::Params), int64_t shared) {
  const few::Params p = few::make_params(args);
  return {{.grid = C::kCtas * static_cast<int>(args.q.dim(0)),
           .block = C::kThreads,
           .cluster = C::kCtas,
           .shared = static_cast<size_t>(shared),
           .pdl = true,
           .resident = 2},
          [=] { kernel(p); }};
}
template <class C>
Kernel gathering(const IndexSelectArgs& args) {
  return kernel_of<C>(args, few::gather::select_kernel<C, bf16>,
                      few::gather_shared_bytes<C>(few::make_params(args)));
}
template <class C>
Kernel exchanging(const IndexSelectArgs& args) {
  return kernel_of<C>(args, few::select_kernel<C, bf16>,
                      few::shared_bytes<C>(few::make_params(args)));
}

void run_emulated(const IndexSelectArgs& args, const Kernel& kernel, uint64_t seed) {
  std::vector<ConstTensorView> before{args.q, args.weights, args.indices};
  if (args.settled.rank == 0) {
    before.insert(before.end(), {args.keys.pages, args.pages, args.sequence, args.visible});
  } else {
    const std::vector<ConstTensorView> fresh = fresh_keys(args);
    before.insert(before.end(), fresh.begin(), fresh.end());
  }
  emulator::launch_stream({touching(before), kernel, touching({args.indices})}, seed);
}

// All values are small integers, so scores are exact and many are equal. Every configuration; those
// for few entries with and without settled ones, of which the last 3 or 70 are not.
void check(IndexShape shape, int64_t k, bool all_equal = false) {
  shape.exact_sums = true;
  Arena arena;
  Rng rng(static_cast<uint64_t>(shape.t * 31 + shape.h * 7 + shape.n + k));
  IndexSelectArgs args = test::random_index_select(arena, rng, shape, k);
  if (all_equal)
    std::fill_n(const_cast<std::byte*>(args.weights.data), args.weights.bytes(), std::byte{});
  const TensorView settled = arena.input(DType::kI32, {shape.t});
  for (int64_t t = 0; t < shape.t; ++t)
    settled.as<int32_t>()[t] = std::max(0, args.visible.as<int32_t>()[t] - (t == 0 ? 3 : 70));
  const std::vector<double> want = index_select_oracle(Context{}, args);
  SCOPED_TRACE(fmt::format("{} queries of {} heads, {} of {}", shape.t, shape.h, k, shape.n));
  emulator::check_runs(
      arena, 8,
      [&](int i) {
        args.settled = i < 4 ? ConstTensorView(settled) : ConstTensorView();
        const auto seed = static_cast<uint64_t>(i < 4 ? i : i + 1);
        if (i == 6) return run_emulated(args, exchanging<few::Many>(args), seed);
        if (i == 7) return run_emulated(args, exchanging<few::ManyWide>(args), seed);
        if (i == 3) return run_emulated(args, gathering<few::FewOfMany>(args), seed);
        run_emulated(args, i % 2 == 0 ? gathering<few::Few>(args) : gathering<few::FewWide>(args),
                     seed);
      },
      [&] { EXPECT_EQ(test::compare(args.indices, want, {.ulps = 0}), ""); });
}

TEST(IndexSelectEmulated, AgreesWithOracle) {
  check({.t = 2, .h = 16, .n = 300}, 128);
  check({.t = 3, .h = 6, .n = 90, .page_entries = 16}, 17);
  check({.t = 2, .h = 4, .n = 100, .page_entries = 12}, 30);
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
