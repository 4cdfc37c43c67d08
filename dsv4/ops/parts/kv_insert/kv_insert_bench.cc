#include "bench/op_bench.h"
#include "dsv4/base/error.h"
#include "dsv4/ops/parts/kv_insert/kv_insert.h"

namespace dsv4 {
namespace {

// Writes n tokens to the first n rows of a packed pool.
template <class Args>
struct InsertCase {
  static constexpr int kPageEntries = 64;

  bench::Tensor x, rows, pages;
  Args args;

  template <class Layout>
  InsertCase(const Layout& layout, int64_t width, int64_t n)
      : x(DType::kBF16, {n, width}),
        rows(DType::kI32, {n}),
        pages(DType::kU8, {ceil_div(n, kPageEntries), layout.page_bytes(kPageEntries)}) {
    bench::fill(x);
    bench::fill_ascending(rows);
    args = {.x = x,
            .rows = rows,
            .pool = {.pages = pages, .layout = layout, .page_entries = kPageEntries}};
  }
};

const bool kRegistered = [] {
  for (const int64_t n : bench::token_counts()) {
    bench::register_impls<KvInsertArgs>(fmt::format("kv_insert/{} rows", n), kv_insert, [=] {
      return std::make_shared<InsertCase<KvInsertArgs>>(KvLayout{}, 512, n);
    });
    bench::register_impls<IndexInsertArgs>(
        fmt::format("index_insert/{} rows", n), index_insert,
        [=] { return std::make_shared<InsertCase<IndexInsertArgs>>(IndexLayoutFp4{}, 128, n); });
  }
  return true;
}();

}  // namespace
}  // namespace dsv4
