// index_select/tTOKENS hHEADS 512 of KEYS, one sequence.

#include "dsv4/ops/model/index_select/index_select.h"

#include "bench/op_bench.h"
#include "dsv4/base/error.h"
#include "dsv4/ops/parts/kv_insert/kv_insert.h"

namespace dsv4 {
namespace {

struct Case {
  static constexpr int kPageEntries = 64, kWidth = 128;

  bench::Tensor q, weights, key_pages, pages, sequence, visible, indices;
  IndexSelectArgs args;

  Case(int64_t t, int64_t h, int64_t n)
      : q(DType::kBF16, {t, h, kWidth}),
        weights(DType::kBF16, {t, h}),
        key_pages(DType::kU8, {n / kPageEntries, IndexLayoutFp4{}.page_bytes(kPageEntries)}),
        pages(DType::kI32, {1, n / kPageEntries}),
        sequence(DType::kI32, {t}),
        visible(DType::kI32, {t}),
        indices(DType::kI32, {t, 512}) {
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
            .max_visible = n,
            .indices = indices};
  }
};

const bool kRegistered = [] {
  for (const int64_t t : bench::token_counts()) {
    for (const int64_t n : {1024, 16384}) {
      bench::register_impls<IndexSelectArgs>(fmt::format("index_select/t{} h64 512 of {}", t, n),
                                             index_select,
                                             [=] { return std::make_shared<Case>(t, 64, n); });
    }
  }
  return true;
}();

}  // namespace
}  // namespace dsv4
