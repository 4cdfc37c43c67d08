// Implementation sm90_bf16 of sparse_mla.h on the emulator. A query's bits may
// depend neither on the order of events nor on the previous work tiles of its
// CTA, so every case also runs on other grids.

#include <gtest/gtest.h>

#include "dsv4/base/error.h"
#include "dsv4/ops/model/sparse_mla/sm90_bf16/kernel.cuh"
#include "dsv4/ops/model/sparse_mla/sm90_bf16/launch.cuh"
#include "tests/emulator/launch.h"
#include "tests/emulator/sparse_mla_check.h"

namespace dsv4 {
namespace {

namespace sm90_bf16 = sparse_mla_kernel::sm90_bf16;
using test::Arena;
using test::Outputs;
using test::Shape;

struct Run {
  uint64_t seed;
  int num_sms;
};
// All work tiles in one CTA, two CTAs, and one CTA per work tile.
constexpr Run kRuns[] = {{0, 1}, {1, 1}, {2, 2}, {3, 1}, {5, 1000}};

void run_emulated(const SparseMlaArgs& args, const Run& how) {
  const sm90_bf16::Params p = sm90_bf16::make_params(args);
  const sm90_bf16::Instance instance = sm90_bf16::select_instance(args);
  emulator::launch({.grid = static_cast<int>(sm90_bf16::num_ctas(p, how.num_sms)),
                    .block = sm90_bf16::kThreads,
                    .shared = static_cast<size_t>(instance.smem_bytes),
                    .seed = how.seed},
                   [&] { instance.kernel(p); });
}

// Entries of both models: d 512 and 576. change(args) is applied before the case is checked.
template <class Change>
void check(Shape shape, const Change& change) {
  shape.rows = test::Rows::kBF16;
  shape.dtype = DType::kBF16;
  shape.d_v = 512;
  for (const KvLayout& layout : {KvLayout{}, kV32Layout}) {
    shape.layout = layout;
    Arena arena;
    Rng rng(static_cast<uint64_t>(shape.h * 1000 + shape.window * 10 + shape.compressed));
    Outputs whole;
    SparseMlaArgs args = test::make_args(arena, rng, shape, whole);
    change(args);
    SCOPED_TRACE(
        fmt::format("q {} lists {} + {}", to_string(args.q), shape.window, shape.compressed));
    emulator::check_runs(arena, args, whole, static_cast<int>(std::size(kRuns)),
                         [&](int i) { run_emulated(args, kRuns[i]); });
  }
}
void check(const Shape& shape) {
  check(shape, [](SparseMlaArgs&) {});
}

// A tile is 64 keys, and a query has an even number of them.
TEST(Sm90Bf16Emulated, EveryNumberOfKeyTiles) {
  for (const int keys : {1, 64, 65, 128, 129, 190, 256, 300}) {
    check({.t = 2, .h = 8, .window = keys / 2, .compressed = keys - keys / 2});
  }
}

TEST(Sm90Bf16Emulated, EveryNumberOfHeadGroups) {
  for (const int heads : {1, 64, 100, 128}) {
    check({.t = 1, .h = heads, .window = 70, .compressed = 60, .s_q = 2});
  }
}

TEST(Sm90Bf16Emulated, ManyKeyTiles) {
  check({.t = 2, .h = 64, .window = 128, .compressed = 900, .invalid = 0.02});
}

// Lists that end, some of them empty, between queries whose lists do not.
TEST(Sm90Bf16Emulated, TopkLengthsAndInvalidIndices) {
  check({.t = 7,
         .h = 9,
         .window = 70,
         .compressed = 150,
         .s_q = 2,
         .lengths = true,
         .strided = true});
  check({.t = 6, .h = 65, .window = 33, .compressed = 64, .invalid = 0.8, .lengths = true});
}

TEST(Sm90Bf16Emulated, QueriesWithoutKeys) {
  check({.t = 3, .h = 9, .window = 8, .compressed = 3, .invalid = 1.0});
  check({.t = 3, .h = 9, .window = 0, .compressed = 0, .normalized = false});
}

TEST(Sm90Bf16Emulated, IndicesPastThePool) {
  check({.t = 2, .h = 5, .window = 70, .compressed = 90}, [](SparseMlaArgs& args) {
    for (KvList* list : {&args.window, &args.compressed}) {
      auto* ids = const_cast<int32_t*>(list->indices.as<int32_t>());
      ids[0] = INT32_MAX;
      ids[5] = static_cast<int32_t>(list->pool.num_rows());
    }
  });
}

TEST(Sm90Bf16Emulated, OutputTypes) {
  for (const bool f32_out : {false, true}) {
    for (const bool normalized : {false, true}) {
      check({.t = 3,
             .h = 66,
             .window = 60,
             .compressed = 120,
             .lengths = true,
             .strided = true,
             .normalized = normalized,
             .f32_out = f32_out});
    }
  }
}

TEST(Sm90Bf16Emulated, OptionalArguments) {
  const Shape shape{.t = 2, .h = 10, .window = 70, .compressed = 90};
  check(shape, [](SparseMlaArgs& args) { args.window = {}, args.sink = {}; });
  check(shape, [](SparseMlaArgs& args) { args.compressed = {}, args.max_logits = {}; });
  check(shape, [](SparseMlaArgs& args) { args.lse = args.max_logits = {}; });
}

}  // namespace
}  // namespace dsv4
