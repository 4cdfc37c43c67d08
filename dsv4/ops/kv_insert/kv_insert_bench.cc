#include "bench/op_bench.h"
#include "dsv4/base/rng.h"
#include "dsv4/ops/kv_insert/kv_insert.h"
#include "dsv4/tensor/buffer.h"

namespace dsv4 {
namespace {

// n tokens into the first n rows of a packed pool.
template <class Args>
struct InsertCase {
  static constexpr int kPageEntries = 64;

  Buffer x, rows, pages;
  Args args;

  template <class Layout>
  InsertCase(const Layout& layout, int64_t width, int64_t n)
      : x(DType::kBF16, {n, width}),
        rows(DType::kI32, {n}),
        pages(DType::kU8, {ceil_div(n, kPageEntries), layout.page_bytes(kPageEntries)}) {
    Rng rng(1);
    for (int64_t i = 0; i < n * width; ++i) {
      x.as<uint16_t>()[i] = f32_to_bf16(static_cast<float>(rng.normal()));
    }
    for (int i = 0; i < n; ++i) rows.as<int32_t>()[i] = i;
    args = {.x = x,
            .rows = rows,
            .pool = {.pages = pages, .layout = layout, .page_entries = kPageEntries}};
  }
};

const bool kRegistered = [] {
  for (const int64_t n : {1, 1024}) {
    bench::register_rows<KvInsertArgs>(
        fmt::format("kv_insert/{} rows", n), kv_insert_rows(), kv_insert_cost,
        [=] { return std::make_shared<InsertCase<KvInsertArgs>>(KvLayout{}, 512, n); });
    bench::register_rows<IndexInsertArgs>(
        fmt::format("index_insert/{} rows", n), index_insert_rows(), index_insert_cost,
        [=] { return std::make_shared<InsertCase<IndexInsertArgs>>(IndexLayoutFp4{}, 128, n); });
  }
  return true;
}();

}  // namespace
}  // namespace dsv4
