// Some output rows of a weight have the bits that they have among all, by every implementation that
// ranks take under --deterministic: in each stored format, plain and with groups.

#include "dsv4/base/error.h"
#include "dsv4/ops/parts/linear/linear_case.h"
#include "tests/harness/slice_check.h"
#include "tests/harness/weights.h"
#if DSV4_CUDA
#include "dsv4/device/device.h"
#endif

namespace dsv4 {
namespace {

using test::Arena;
using test::Slice;
using test::StoredAs;

// Units of rows [begin, end). A unit is a group, or `unit` rows.
Slice<LinearArgs> units(const LinearArgs& whole, int64_t begin, int64_t end, int64_t unit) {
  Slice<LinearArgs> slice{whole, {}};
  LinearArgs& args = slice.args;
  const int64_t n = whole.weight.n, rows = whole.groups > 1 ? n / whole.groups : unit;
  const int64_t first = std::min(n, begin * rows), last = std::min(n, end * rows);
  args.weight = whole.weight.rows(first, last);
  args.out = whole.out.slice(1, first, last);
  if (whole.groups > 1) {
    args.groups = end - begin;
    const int64_t k = whole.weight.k;
    args.x = whole.x.slice(1, begin * k, end * k);
    if (!whole.x_scale.empty()) {
      const int64_t scales = ceil_div(k, int64_t{128});
      args.x_scale = whole.x_scale.slice(1, begin * scales, end * scales);
    }
  }
  linear.check(args);
  slice.got_want = {{args.out, args.out}};
  return slice;
}

void check(const StoredAs& stored, const test::LinearShape& shape, int64_t n, int64_t k, Rng& rng) {
  Arena arena;
  const WeightView weight = random_weight(arena, rng, stored, n, k);
  const LinearArgs whole = random_linear(arena, rng, shape, weight);
  linear.check(whole);
  const int64_t unit = stored.format == WeightFormat::kFp8Block ? 128 : 1 + rng.below(40);
  const int64_t count = shape.groups > 1 ? shape.groups : ceil_div(n, unit);
  std::vector<Slice<LinearArgs>> slices;
  for (const int64_t parts : {2, 5}) {
    const std::vector<int64_t> cuts = test::random_cuts(rng, count, parts);
    for (size_t i = 1; i < cuts.size(); ++i)
      slices.push_back(units(whole, cuts[i - 1], cuts[i], unit));
  }
  check_slices(linear.impls, {}, arena, whole, slices,
               fmt::format("{} t={} n={} k={} groups={} x {} to {}", name(stored), shape.t, n, k,
                           shape.groups, name(shape.x), name(shape.out)));
}

TEST(LinearSlices, HaveTheBitsOfTheWhole) {
  Rng rng(static_cast<uint64_t>(testing::UnitTest::GetInstance()->random_seed()) + 11);
  for (const StoredAs& stored : test::kAllStored) {
    for (const int64_t t : {1, 8, 70}) {
      const int64_t n = 128 * (3 + rng.below(4)) - (rng.below(2) == 0 ? 0 : 96),
                    k = 32 * (1 + rng.below(40));
      check(stored, {.t = t}, n, k, rng);
      check(stored, {.t = t, .x = DType::kBF16, .out = DType::kBF16}, n, k, rng);
    }
  }
}

TEST(LinearSlices, OfQuantizedActivations) {
  Rng rng(static_cast<uint64_t>(testing::UnitTest::GetInstance()->random_seed()) + 12);
  for (const StoredAs& stored : test::kAllStored) {
    if (stored.format == WeightFormat::kF16 || stored.format == WeightFormat::kF32) continue;
    for (const int64_t t : {1, 70}) {
      const int64_t k = 128 * (1 + rng.below(9));
      check(stored, {.t = t, .x = DType::kE4M3, .out = DType::kBF16}, 640, k, rng);
      check(stored, {.t = t, .x = DType::kBF16, .out = DType::kBF16, .quantize_x = true}, 640, k,
            rng);
    }
  }
}

// So many rows that a GPU would share the columns of a slice among more CTAs than those of all.
TEST(LinearSlices, OfManyRows) {
  Rng rng(static_cast<uint64_t>(testing::UnitTest::GetInstance()->random_seed()) + 14);
  for (const StoredAs& stored :
       {StoredAs{WeightFormat::kBF16}, StoredAs{WeightFormat::kFp8Block},
        StoredAs{WeightFormat::kKbit, 4, true}, StoredAs{WeightFormat::kKbit, 5, true}}) {
    for (const int64_t k : {1024, 2560}) {
      for (const int64_t t : {1, 8})
        check(stored, {.t = t, .x = DType::kBF16, .out = DType::kF32}, 3072, k, rng);
      if (stored.format != WeightFormat::kBF16)
        check(stored, {.t = 1, .x = DType::kBF16, .out = DType::kF32, .quantize_x = true}, 3072, k,
              rng);
    }
  }
}

// wo_a: a block of rows for each group of heads.
TEST(LinearSlices, OfGroups) {
  Rng rng(static_cast<uint64_t>(testing::UnitTest::GetInstance()->random_seed()) + 13);
  for (const StoredAs& stored :
       {StoredAs{WeightFormat::kBF16}, StoredAs{WeightFormat::kFp8Block},
        StoredAs{WeightFormat::kMxfp4}, StoredAs{WeightFormat::kKbit, 5}}) {
    for (const int64_t t : {1, 21}) {
      check(stored, {.t = t, .x = DType::kBF16, .out = DType::kBF16, .groups = 8}, 8 * 128, 256,
            rng);
      check(stored, {.t = t, .x = DType::kE4M3, .out = DType::kBF16, .groups = 5}, 5 * 256, 256,
            rng);
    }
  }
}

#if DSV4_CUDA
// Slices of V4-Flash and V4-Pro on 2, 4 and 8 GPUs take the implementation of the whole.
TEST(LinearSlices, DryRunOfTheReleases) {
  const std::unique_ptr<Device> hopper =
      Device::dry_run({.name = "H", .major = 9, .num_sms = 132, .max_smem_per_block = 227 << 10});
  const Context context{.need_batch_invariant = true, .device = hopper.get()};
  const auto expect_one = [&](int64_t n, int64_t k, const test::LinearShape& shape) {
    Arena arena;
    WeightView weight{.format = WeightFormat::kFp8Block, .n = n, .k = k};
    weight.data = arena.input(DType::kE4M3, {n, k});
    weight.scale = arena.input(DType::kE8M0, {n / 128, k / 128});
    LinearArgs whole{.x = arena.input(shape.x, {shape.t, shape.groups * k}),
                     .weight = weight,
                     .out = arena.output(DType::kBF16, {shape.t, n}),
                     .groups = shape.groups,
                     .quantize_x = shape.quantize_x};
    if (shape.x == DType::kE4M3)
      whole.x_scale = arena.input(DType::kE8M0, {shape.t, shape.groups * k / 128});
    const std::string_view want = choose(linear, context, whole).name;
    const int64_t count = shape.groups > 1 ? shape.groups : n / 128;
    for (const int64_t world : {2, 4, 8}) {
      for (int64_t r = 0; r < world; ++r) {
        const LinearArgs slice = units(whole, count * r / world, count * (r + 1) / world, 128).args;
        EXPECT_EQ(choose(linear, context, slice).name, want)
            << fmt::format("[{}, {}] of {} groups, {} tokens of {}, rank {} of {}", n, k,
                           shape.groups, shape.t, name(shape.x), r, world);
      }
    }
  };
  for (const int64_t t : {1, 2, 8, 32, 64, 65, 512, 4096}) {
    for (const int64_t groups : {8, 16}) {
      const int64_t hidden = groups == 8 ? 4096 : 7168;
      expect_one(groups * 1024, 4096, {.t = t, .x = DType::kBF16, .groups = groups});
      expect_one(hidden, groups * 1024, {.t = t, .x = DType::kBF16, .quantize_x = true});
      expect_one(hidden, groups * 1024, {.t = t, .x = DType::kE4M3});
    }
  }
}
#endif

}  // namespace
}  // namespace dsv4
