// What tests and emulated tests of attention_in.h share beside attention_in_case.h: a case in test
// memory with weights of a stored format, rows of pools as outputs, and tolerances.

#pragma once

#include "dsv4/ops/model/attention_in/attention_in_case.h"
#include "dsv4/ops/parts/kv_insert/kv_insert_case.h"
#include "tests/harness/op_check.h"
#include "tests/harness/weights.h"

namespace dsv4::test {

inline constexpr StoredAs kFp8{WeightFormat::kFp8Block}, kBf16{WeightFormat::kBF16},
    kKbit4{WeightFormat::kKbit, 4, true}, kKbit5{WeightFormat::kKbit, 5, true};

struct AttentionInCase {
  Arena arena;
  AttentionInArgs args;

  AttentionInCase(const AttentionInShape& shape, Numerics numerics, const StoredAs& stored) {
    Rng rng(static_cast<uint64_t>(shape.tokens() * 31 + shape.ratio + shape.hidden));
    args = random_attention_in(arena, rng, shape, numerics, [&](bool coded, int64_t n, int64_t k) {
      return random_weight(arena, rng, coded ? stored : kBf16, n, k);
    });
  }
};

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
