// Random arguments of attention_in in test memory, and what its outputs are compared with.

#pragma once

#include <algorithm>
#include <numeric>

#include "dsv4/ops/model/attention_in/attention_in.h"
#include "dsv4/ops/model/hc_boundary/random_boundary_test.h"
#include "dsv4/ops/parts/rope/rope.h"
#include "tests/harness/op_check.h"
#include "tests/harness/weights.h"

namespace dsv4::test {

using Ints = std::vector<int64_t>;

struct TokenRun {
  int64_t start, count;
};

struct AttentionInShape {
  std::vector<TokenRun> runs;
  int ratio = 0;           // 0: a layer without compression
  bool has_index = false;  // an indexer, and entries that overlap
  bool select = false;     // indexer queries are wanted
  int64_t spare = 0;       // tokens and entries that no run fills
  int64_t hidden = 256, rank = 192, heads = 4, index_heads = 2;
  KvLayout row{.nope = 64, .rope = 64};
  int index_dim = 64;
  bool boundary = false;  // x is computed inside

  int64_t run_tokens() const {
    return std::accumulate(runs.begin(), runs.end(), int64_t{0},
                           [](int64_t sum, const TokenRun& run) { return sum + run.count; });
  }
  int64_t tokens() const { return run_tokens() + spare; }
};

inline constexpr StoredAs kFp8{WeightFormat::kFp8Block}, kBf16{WeightFormat::kBF16},
    kKbit4{WeightFormat::kKbit, 4, true}, kKbit5{WeightFormat::kKbit, 5, true};

// Random arguments of one layer.
class AttentionInCase {
 public:
  Arena arena;
  AttentionInArgs args;

  AttentionInCase(const AttentionInShape& shape, Numerics numerics, StoredAs stored)
      : s_(shape),
        packed_(numerics == Numerics::kOfficial),
        dtype_(packed_ ? DType::kBF16 : DType::kF32),
        stored_(stored),
        rng_(static_cast<uint64_t>(shape.tokens() * 31 + shape.ratio + shape.hidden)) {
    tokens();
    if (s_.ratio > 0) entries();
    if (s_.has_index) indexer();
  }

 private:
  TensorView normal(DType dtype, std::initializer_list<int64_t> shape, double sigma = 1,
                    double mean = 0) {
    const TensorView view = arena.input(dtype, shape);
    fill_normal(view, rng_, sigma, mean);
    return view;
  }
  TensorView ints(const Ints& values) {
    const TensorView view = arena.input(DType::kI32, {static_cast<int64_t>(values.size())});
    for (size_t i = 0; i < values.size(); ++i)
      view.as<int32_t>()[i] = static_cast<int32_t>(values[i]);
    return view;
  }
  // Values of the sequences, which in another order would not fit the tokens.
  TensorView ordered(const Ints& values) {
    const TensorView view = ints(values);
    arena.keep_order(view);
    return view;
  }
  // `count` different rows of a pool of `rows`, then -1.
  TensorView distinct_rows(int64_t count, int64_t padding, int64_t rows) {
    Ints all(static_cast<size_t>(rows));
    std::iota(all.begin(), all.end(), 0);
    for (size_t i = all.size(); i > 1; --i)
      std::swap(all[i - 1], all[static_cast<size_t>(rng_.below(static_cast<int64_t>(i)))]);
    all.resize(static_cast<size_t>(count));
    all.insert(all.end(), static_cast<size_t>(padding), -1);
    return ints(all);
  }
  // What is not written stays 0x38 in every byte.
  TensorView pages(int64_t count, int64_t packed_bytes, int64_t floats) {
    const TensorView view = packed_ ? arena.inout(DType::kU8, {count, packed_bytes})
                                    : arena.inout(DType::kF32, {count, floats});
    std::fill_n(view.data, view.bytes(), std::byte{0x38});
    return view;
  }
  KvPool kv_pool(int64_t rows, int page_entries) {
    const int64_t count = rows / page_entries + 2;
    return {.pages = pages(count, s_.row.page_bytes(page_entries),
                           int64_t{page_entries} * s_.row.width()),
            .layout = s_.row,
            .page_entries = page_entries};
  }

  void tokens();
  void entries();
  void indexer();
  CompressorWeights compressor_weights(const StateLayout& layout) {
    return {.wkv = random_weight(arena, rng_, kBf16, layout.columns(), s_.hidden),
            .wgate = random_weight(arena, rng_, kBf16, layout.columns(), s_.hidden),
            .ape = normal(DType::kF32, {layout.ratio, layout.columns()}),
            .norm = normal(dtype_, {layout.width}, 0.2, 1)};
  }
  StatePool state_pool(int width) {
    const StateLayout layout{s_.ratio, width, s_.has_index, 3};
    const auto slots = static_cast<int64_t>(s_.runs.size()) + 1;
    const TensorView state = arena.inout(DType::kF32, {slots, layout.floats()});
    fill_normal(state, rng_);
    return {.slots = state, .layout = layout};
  }

  const AttentionInShape& s_;
  const bool packed_;
  const DType dtype_;
  const StoredAs stored_;
  Rng rng_;
};

inline void AttentionInCase::tokens() {
  const int64_t t = s_.tokens(), d = s_.row.width();
  Ints positions;
  for (const TokenRun& run : s_.runs)
    for (int64_t i = 0; i < run.count; ++i) positions.push_back(run.start + i);
  positions.resize(static_cast<size_t>(t), 0);
  const std::vector<float> freqs = rope_frequencies(s_.row.rope, 10000, {});
  const TensorView table = arena.input(DType::kF32, {static_cast<int64_t>(freqs.size())});
  std::copy(freqs.begin(), freqs.end(), table.as<float>());
  if (s_.boundary) {
    args.boundary = random_boundary(arena, rng_, t, s_.hidden, dtype_);
    args.x = args.boundary.x;
  } else {
    args.x = normal(dtype_, {t, s_.hidden});
  }
  args.weights = {.wq_a = random_weight(arena, rng_, stored_, s_.rank, s_.hidden),
                  .wq_b = random_weight(arena, rng_, stored_, s_.heads * d, s_.rank),
                  .wkv = random_weight(arena, rng_, stored_, d, s_.hidden),
                  .q_norm = normal(dtype_, {s_.rank}, 0.2, 1),
                  .kv_norm = normal(dtype_, {d}, 0.2, 1)};
  // Kernels may read it before they wait for the previous kernel, as other weights.
  const ConstTensorView& norm = args.weights.q_norm;
  arena.keep_order({norm, const_cast<std::byte*>(norm.data)});
  args.positions = ints(positions);
  args.freqs = table;
  args.window = kv_pool(t + 5, 7);
  args.window_rows = distinct_rows(s_.run_tokens(), s_.spare, args.window.num_rows());
  args.q = arena.output(dtype_, {t, s_.heads, d});
}

inline void AttentionInCase::entries() {
  Ints cu{0}, start, slots, positions;
  for (const TokenRun& run : s_.runs) {
    cu.push_back(cu.back() + run.count);
    start.push_back(run.start);
    slots.push_back(run.count > 0 ? static_cast<int64_t>(slots.size()) + 1 : -1);
    for (int64_t w = run.start / s_.ratio; w < (run.start + run.count) / s_.ratio; ++w)
      positions.push_back(w * s_.ratio);
  }
  const auto closed = static_cast<int64_t>(positions.size());
  positions.resize(positions.size() + static_cast<size_t>(s_.spare), 0);
  args.cu_tokens = ordered(cu);
  args.start = ordered(start);
  args.state_slots = ordered(slots);
  args.entries = kv_pool(closed + 3, 4);
  args.entry_rows = distinct_rows(closed, s_.spare, args.entries.num_rows());
  args.entry_positions = ints(positions);
  args.state = state_pool(s_.row.width());
  args.weights.compressor = compressor_weights(args.state.layout);
}

inline void AttentionInCase::indexer() {
  const IndexLayoutFp4 layout{s_.index_dim};
  const int page_entries = args.entries.page_entries;
  args.keys = {.pages = pages(args.entries.pages.dim(0), layout.page_bytes(page_entries),
                              int64_t{page_entries} * s_.index_dim),
               .layout = layout,
               .page_entries = page_entries};
  args.index_state = state_pool(s_.index_dim);
  args.weights.indexer = {
      .wq_b = random_weight(arena, rng_, stored_, s_.index_heads * s_.index_dim, s_.rank),
      .weights_proj = random_weight(arena, rng_, kBf16, s_.index_heads, s_.hidden),
      .compressor = compressor_weights(args.index_state.layout)};
  if (!s_.select) return;
  args.index_q = arena.output(dtype_, {s_.tokens(), s_.index_heads, s_.index_dim});
  args.index_weights = arena.output(dtype_, {s_.tokens(), s_.index_heads});
}

inline int64_t width_of(const KvPool& pool) {
  return pool.layout.width();
}
inline int64_t width_of(const IndexPool& pool) {
  return pool.layout.width;
}

// All rows of a pool. [rows, width] f32
template <class Pool>
Buffer rows_of(const Pool& pool) {
  Buffer rows(DType::kF32, {pool.num_rows(), width_of(pool)});
  for (int64_t i = 0; i < pool.num_rows(); ++i) load_row(pool, i, rows.view().row<float>(i));
  return rows;
}

// The rows of `pool`, with `values` in the rows of the list.
template <class Pool>
OpOutput pool_output(const char* name, const Pool& pool, const ConstTensorView& list,
                     const std::vector<double>& values, const Tolerance& tolerance) {
  const Buffer before = rows_of(pool);
  const auto width = static_cast<size_t>(width_of(pool));
  std::vector<double> want;
  for (int64_t i = 0; i < before.view().numel(); ++i) want.push_back(value_at(before.view(), i));
  auto next = values.begin();
  for (int64_t i = 0; i < list.numel(); ++i) {
    const int32_t row = list.as<int32_t>()[i];
    if (row < 0) continue;
    std::copy_n(next, width, want.begin() + row * static_cast<int64_t>(width));
    next += static_cast<int64_t>(width);
  }
  EXPECT_TRUE(next == values.end()) << name;
  return {.name = name,
          .view = pool.pages,
          .want = std::move(want),
          .tolerance = tolerance,
          .decoded = [pool] { return rows_of(pool); }};
}

// Exact: f32 sums of at most 256 terms of order 2, twice, normalized in between.
// Official: an f32 sum close to a tie changes a bf16 value by a step, and rarely a code of 8 bits
// by 1/8 of itself, or one of 4 bits by a third of the largest. One of those in a case is allowed:
// of the 192 codes of a latent, it changes the cosine of q by (1/8)^2 / 192 / 2 = 4e-5. FP8 tensor
// cores, whose sums have about 14 bits, are off by one more often than f32 sums. A skipped rounding
// to 8 bits changes the cosine of q by 1e-4, one to 4 bits that of the indexer's rows by 5e-3.
struct Tolerances {
  Tolerance q, rows, keys, state, index_q, index_weights;
};
inline constexpr Tolerances kExact{.q = {.ulps = 4, .rel = 1e-5},
                                   .rows = {.ulps = 4, .rel = 2e-5},
                                   .keys = {.ulps = 4, .rel = 2e-5},
                                   .state = {.ulps = 4, .rel = 4e-6},
                                   .index_q = {.ulps = 4, .rel = 1e-5},
                                   .index_weights = {.ulps = 4, .rel = 4e-6}};
inline constexpr Tolerances kOfficial{.q = {.ulps = 2.01, .rel = 0.02, .cosine = 4e-5},
                                      .rows = {.ulps = 1.01, .rel = 0.13, .cosine = 1e-4},
                                      .keys = {.ulps = 0, .rel = 0.34, .cosine = 1e-3},
                                      .state = {.ulps = 4, .rel = 4e-6},
                                      .index_q = {.ulps = 0, .rel = 0.34, .cosine = 1e-3},
                                      .index_weights = {.ulps = 1.01, .rel = 4e-6}};

// Weights are rounded to bf16: by 2^-9 at most, once for a latent, and again for what follows.
inline constexpr Tolerances kRoundedWeights{.q = {.ulps = 2.01, .rel = 0.02, .cosine = 9e-5},
                                            .rows = {.ulps = 1.01, .rel = 0.13, .cosine = 2e-4},
                                            .keys = kOfficial.keys,
                                            .state = kOfficial.state,
                                            .index_q = {.ulps = 0, .rel = 0.34, .cosine = 3e-3},
                                            .index_weights = kOfficial.index_weights};

}  // namespace dsv4::test
