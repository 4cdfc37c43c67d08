// Random arguments of index_scores in test memory, for the tests of the ops that score keys.

#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "dsv4/base/bits.h"
#include "dsv4/ops/parts/indexer/indexer.h"
#include "tests/harness/arena.h"

namespace dsv4::test {

struct IndexShape {
  int64_t t = 1, h = 64, n = 100;
  int width = 128, page_entries = 64;
  bool packed = true;
  DType dtype = DType::kBF16;
  bool exact_sums = false;  // all values are small integers: no rounding can differ
};

inline void set_key(const IndexPool& pool, int64_t row, const float* x) {
  const int64_t page = row / pool.page_entries, entry = row % pool.page_entries;
  if (pool.packed()) {
    pack_index_key(pool.layout, x, pool.pages.row<uint8_t>(page), pool.page_entries, entry);
  } else {
    std::copy_n(x, pool.layout.width, pool.pages.row<float>(page) + entry * pool.layout.width);
  }
}

// Two sequences with alternating pages, so that logical and physical order differ; tokens alternate
// between them. `visible` ranges from 0 to n.
inline IndexScoresArgs random_index_args(Arena& arena, Rng& rng, const IndexShape& shape) {
  const int64_t max_pages = ceil_div(shape.n, shape.page_entries);
  IndexPool keys{.layout = {shape.width}, .page_entries = shape.page_entries};
  const int64_t pool_pages = 2 * max_pages + 1;
  keys.pages =
      shape.packed
          ? arena.input(DType::kU8, {pool_pages, keys.layout.page_bytes(shape.page_entries)})
          : arena.input(DType::kF32, {pool_pages, int64_t{shape.page_entries} * shape.width});
  std::vector<float> x(static_cast<size_t>(shape.width));
  for (int64_t row = 0; row < pool_pages * shape.page_entries; ++row) {
    for (float& v : x) {
      v = static_cast<float>(shape.exact_sums ? static_cast<double>(rng.below(9) - 4)
                                              : rng.normal());
    }
    set_key(keys, row, x.data());
  }
  const TensorView q = arena.input(shape.dtype, {shape.t, shape.h, shape.width});
  const TensorView weights = arena.input(shape.dtype, {shape.t, shape.h});
  const TensorView pages = arena.input(DType::kI32, {2, max_pages});
  const TensorView sequence = arena.input(DType::kI32, {shape.t});
  const TensorView visible = arena.input(DType::kI32, {shape.t});
  fill_normal(q, rng);
  fill_normal(weights, rng, 0.01);
  for (int64_t i = 0; shape.exact_sums && i < q.numel(); ++i) {
    set_value(q, i, static_cast<double>(rng.below(7) - 3));
  }
  for (int64_t i = 0; shape.exact_sums && i < weights.numel(); ++i) {
    set_value(weights, i, std::ldexp(static_cast<double>(rng.below(15) - 7), -6));
  }
  for (int64_t i = 0; i < 2 * max_pages; ++i) {
    pages.as<int32_t>()[i % 2 * max_pages + i / 2] = static_cast<int32_t>(pool_pages - 1 - i);
  }
  for (int64_t i = 0; i < shape.t; ++i) {
    sequence.as<int32_t>()[i] = static_cast<int32_t>(i % 2);
    visible.as<int32_t>()[i] =
        static_cast<int32_t>(shape.t == 1 ? shape.n : shape.n * i / (shape.t - 1));
  }
  return {.q = q,
          .weights = weights,
          .weight_scale = shape.exact_sums ? 0.5f : 0.088388346f,
          .keys = keys,
          .pages = pages,
          .sequence = sequence,
          .visible = visible,
          .scores = arena.output(DType::kF32, {shape.t, shape.n})};
}

}  // namespace dsv4::test
