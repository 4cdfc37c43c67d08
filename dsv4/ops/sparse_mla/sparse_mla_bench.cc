#include <cmath>

#include "bench/op_bench.h"
#include "dsv4/base/rng.h"
#include "dsv4/ops/kv_insert/kv_insert.h"
#include "dsv4/ops/sparse_mla/sparse_mla.h"

namespace dsv4 {
namespace {

// Window rows follow each other, as in prefill and decode; compressed rows are a random ascending
// choice from a pool four times as large, as the indexer makes it, slowly changing from query to
// query.
struct SparseMlaCase {
  bench::Tensor q, sink, window_pages, compressed_pages, window_rows, compressed_rows, out, lse;
  SparseMlaArgs args;

  SparseMlaCase(int64_t t, int64_t h, int64_t window, int64_t compressed, KvLayout layout)
      : q(DType::kBF16, {t, h, layout.width()}),
        sink(DType::kF32, {h}),
        window_pages(pages(layout, window + t)),
        compressed_pages(pages(layout, 4 * compressed)),
        window_rows(DType::kI32, {t, window}),
        compressed_rows(DType::kI32, {t, compressed}),
        out(DType::kBF16, {t, h, layout.width()}),
        lse(DType::kF32, {t, h}) {
    Rng rng(1);
    bench::fill(q);
    for (int64_t i = 0; i < t; ++i) {
      for (int64_t j = 0; j < window; ++j) {
        window_rows.view().row<int32_t>(i)[j] = static_cast<int32_t>(i + j);
      }
      for (int64_t j = 0; j < compressed; ++j) {
        const bool keep = i > 0 && rng.uniform() < 0.97;
        compressed_rows.view().row<int32_t>(i)[j] =
            keep ? compressed_rows.view().row<int32_t>(i - 1)[j]
                 : static_cast<int32_t>(4 * j + rng.below(4));
      }
    }
    args = {.q = q,
            .window = {.pool = filled(window_pages, layout), .rows = window_rows},
            .compressed = {.pool = filled(compressed_pages, layout), .rows = compressed_rows},
            .sink = sink,
            .scale = 1.f / std::sqrt(static_cast<float>(layout.width())),
            .out = out,
            .lse = lse};
  }

  static constexpr int kPageEntries = 64;

  static bench::Tensor pages(const KvLayout& layout, int64_t rows) {
    return bench::Tensor(DType::kU8,
                         {ceil_div(rows, kPageEntries), layout.page_bytes(kPageEntries)});
  }

  static KvPool filled(const bench::Tensor& pages, const KvLayout& layout) {
    const KvPool pool{.pages = pages, .layout = layout, .page_entries = kPageEntries};
    const bench::Tensor x(DType::kF32, {pool.num_rows(), layout.width()});
    const bench::Tensor rows(DType::kI32, {pool.num_rows()});
    bench::fill(x);
    bench::fill_ascending(rows);
    kv_insert(Context{}, {.x = x, .rows = rows, .pool = pool});
    return pool;
  }
};

void add(int64_t t, int64_t h, int64_t window, int64_t compressed, KvLayout layout) {
  bench::register_rows<SparseMlaArgs>(
      fmt::format("sparse_mla/t{} h{} d{} {}+{} rows", t, h, layout.width(), window, compressed),
      sparse_mla_rows(), sparse_mla_cost,
      [=] { return std::make_shared<SparseMlaCase>(t, h, window, compressed, layout); });
}

const bool kRegistered = [] {
  for (const int64_t t : bench::token_counts()) {
    add(t, 64, 128, 512, {});
    add(t, 4, 128, 64, {});
    add(t, 4, 128, 64, {.nope = 64, .rope = 32});
  }
  return true;
}();

}  // namespace
}  // namespace dsv4
