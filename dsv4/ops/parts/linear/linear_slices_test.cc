// Some output rows of a weight have the bits that they have among all, by every implementation that
// ranks take under --deterministic: in each stored format, plain and with groups.

#include "dsv4/base/error.h"
#include "dsv4/ops/parts/linear/linear_case.h"
#include "tests/harness/slice_check.h"
#include "tests/harness/weights.h"

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
    for (const int64_t t : {1, 5, 130}) {
      const int64_t k = 128 * (1 + rng.below(9));
      check(stored, {.t = t, .x = DType::kE4M3, .out = DType::kBF16}, 640, k, rng);
      check(stored, {.t = t, .x = DType::kBF16, .out = DType::kBF16, .quantize_x = true}, 640, k,
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

}  // namespace
}  // namespace dsv4
