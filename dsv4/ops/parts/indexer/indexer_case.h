// Oracles of indexer.h, and random arguments for its tests and benchmarks and for those of
// index_select.h.

#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "dsv4/base/bits.h"
#include "dsv4/formats/pack_index_key.h"
#include "dsv4/ops/parts/indexer/indexer.h"
#include "tests/harness/fill.h"

namespace dsv4 {

std::vector<double> index_scores_oracle(const Context& context,
                                        const IndexScoresArgs& args);  // [t, n]
std::vector<double> top_k_oracle(const TopKArgs& args);                // [t, k]

}  // namespace dsv4

namespace dsv4::test {

struct IndexShape {
  int64_t t = 1, h = 64, n = 100;
  int width = 128, page_entries = 64;
  bool packed = true;
  DType dtype = DType::kBF16;
  bool exact_sums = false;  // all values are small integers: no rounding can differ
  bool all_visible = false;
  int64_t sequences = 2;
};

inline void set_key(const IndexPool& pool, int64_t row, const float* x) {
  const int64_t page = row / pool.page_entries, entry = row % pool.page_entries;
  if (pool.packed()) {
    pack_index_key(pool.layout, x, pool.pages.row<uint8_t>(page), pool.page_entries, entry);
  } else {
    std::copy_n(x, pool.layout.width, pool.pages.row<float>(page) + entry * pool.layout.width);
  }
}

// Sequences with alternating pages, so that logical and physical order differ; tokens alternate
// between them. `visible` ranges from 0 to n, or is n.
template <class Memory, class Random>
IndexScoresArgs random_index_scores(Memory& memory, Random& rng, const IndexShape& shape) {
  const int64_t max_pages = ceil_div(shape.n, shape.page_entries);
  IndexPool keys{.layout = {shape.width}, .page_entries = shape.page_entries};
  const int64_t pool_pages = shape.sequences * max_pages + 1;
  keys.pages =
      shape.packed
          ? memory.input(DType::kU8, {pool_pages, keys.layout.page_bytes(shape.page_entries)})
          : memory.input(DType::kF32, {pool_pages, int64_t{shape.page_entries} * shape.width});
  std::vector<float> x(static_cast<size_t>(shape.width));
  for (int64_t row = 0; row < pool_pages * shape.page_entries; ++row) {
    for (float& v : x) {
      v = static_cast<float>(shape.exact_sums ? static_cast<double>(rng.below(9) - 4)
                                              : rng.normal());
    }
    set_key(keys, row, x.data());
  }
  const TensorView q = memory.input(shape.dtype, {shape.t, shape.h, shape.width});
  const TensorView weights = memory.input(shape.dtype, {shape.t, shape.h});
  const TensorView pages = memory.input(DType::kI32, {shape.sequences, max_pages});
  const TensorView sequence = memory.input(DType::kI32, {shape.t});
  const TensorView visible = memory.input(DType::kI32, {shape.t});
  fill_normal(q, rng);
  fill_normal(weights, rng, 0.01);
  for (int64_t i = 0; shape.exact_sums && i < q.numel(); ++i) {
    set_value(q, i, static_cast<double>(rng.below(7) - 3));
  }
  for (int64_t i = 0; shape.exact_sums && i < weights.numel(); ++i) {
    set_value(weights, i, std::ldexp(static_cast<double>(rng.below(15) - 7), -6));
  }
  for (int64_t i = 0; i < shape.sequences * max_pages; ++i) {
    pages.as<int32_t>()[i % shape.sequences * max_pages + i / shape.sequences] =
        static_cast<int32_t>(pool_pages - 1 - i);
  }
  for (int64_t i = 0; i < shape.t; ++i) {
    sequence.as<int32_t>()[i] = static_cast<int32_t>(i % shape.sequences);
    const bool all = shape.all_visible || shape.t == 1;
    visible.as<int32_t>()[i] = static_cast<int32_t>(all ? shape.n : shape.n * i / (shape.t - 1));
  }
  return {.q = q,
          .weights = weights,
          .weight_scale = shape.exact_sums ? 0.5f : 0.088388346f,
          .keys = keys,
          .pages = pages,
          .sequence = sequence,
          .visible = visible,
          .scores = memory.output(DType::kF32, {shape.t, shape.n})};
}

}  // namespace dsv4::test
