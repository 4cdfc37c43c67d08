#include "bench/op_bench.h"
#include "dsv4/base/error.h"
#include "dsv4/base/rng.h"
#include "dsv4/ops/parts/indexer/indexer.h"
#include "dsv4/ops/parts/kv_insert/kv_insert.h"

namespace dsv4 {
namespace {

struct IndexScoresCase {
  static constexpr int kPageEntries = 64, kWidth = 128;

  bench::Tensor q, weights, key_pages, pages, sequence, visible, scores;
  IndexScoresArgs args;

  IndexScoresCase(int64_t t, int64_t h, int64_t n)
      : q(DType::kBF16, {t, h, kWidth}),
        weights(DType::kBF16, {t, h}),
        key_pages(DType::kU8, {n / kPageEntries, IndexLayoutFp4{}.page_bytes(kPageEntries)}),
        pages(DType::kI32, {1, n / kPageEntries}),
        sequence(DType::kI32, {t}),
        visible(DType::kI32, {t}),
        scores(DType::kF32, {t, n}) {
    bench::fill(q);
    bench::fill(weights, 0.01f);
    const IndexPool pool{.pages = key_pages, .page_entries = kPageEntries};
    const bench::Tensor x(DType::kF32, {n, kWidth}), rows(DType::kI32, {n});
    bench::fill(x);
    bench::fill_ascending(rows);
    index_insert(Context{}, {.x = x, .rows = rows, .pool = pool});
    bench::fill_ascending(pages);
    for (int64_t i = 0; i < t; ++i) visible.as<int32_t>()[i] = static_cast<int32_t>(n);
    args = {.q = q,
            .weights = weights,
            .keys = pool,
            .pages = pages,
            .sequence = sequence,
            .visible = visible,
            .scores = scores};
  }
};

// bf16 scores, as the reference has them: ties are common.
struct TopKCase {
  bench::Tensor scores, visible, indices;
  TopKArgs args;

  TopKCase(int64_t t, int64_t n, int64_t k)
      : scores(DType::kF32, {t, n}), visible(DType::kI32, {t}), indices(DType::kI32, {t, k}) {
    Rng rng(1);
    for (int64_t i = 0; i < t * n; ++i) {
      scores.as<float>()[i] = round_to_bf16(static_cast<float>(rng.normal()));
    }
    for (int64_t i = 0; i < t; ++i) visible.as<int32_t>()[i] = static_cast<int32_t>(n);
    args = {.scores = scores, .visible = visible, .indices = indices};
  }
};

const bool kRegistered = [] {
  for (const int64_t t : bench::token_counts()) {
    for (const int64_t h : {4, 64}) {
      bench::register_impls<IndexScoresArgs>(
          fmt::format("index_scores/t{} h{} {} keys", t, h, 4096), index_scores,
          [=] { return std::make_shared<IndexScoresCase>(t, h, 4096); });
    }
    for (const int64_t n : {4096, 262144}) {
      if (t * n > int64_t{1} << 26) continue;  // 256 MB of scores
      bench::register_impls<TopKArgs>(fmt::format("top_k/t{} 512 of {}", t, n), top_k,
                                      [=] { return std::make_shared<TopKCase>(t, n, 512); });
    }
  }
  return true;
}();

}  // namespace
}  // namespace dsv4
