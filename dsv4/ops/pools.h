// Paged pools of cache rows as arguments of ops: base, page size, layout. cache/ owns the pages. A
// row id is page * page_entries + entry, so one int32 identifies a row in any page; negative means
// no row.

#pragma once

#include <cstdint>

#include "dsv4/formats/index_layout.h"
#include "dsv4/formats/kv_layout.h"
#include "dsv4/tensor/tensor.h"

namespace dsv4 {

// Attention entries, each both key and value. Pages may be at any distance, so a bf16 tensor [n, d]
// with any row stride is a plain pool with page_entries = 1.
struct KvPool {
  TensorView pages;  // packed: [num_pages, layout.page_bytes(page_entries)] U8
                     // plain:  [num_pages, page_entries * layout.width()] F32|BF16
  KvLayout layout;
  int page_entries = 0;

  bool empty() const { return pages.empty(); }
  bool packed() const { return pages.dtype == DType::kU8; }
  int64_t num_rows() const { return pages.dim(0) * page_entries; }
  int64_t row_bytes() const {
    return packed() ? layout.row_bytes() : layout.width() * item_bytes(pages.dtype);
  }
};

// Indexer keys.
struct IndexPool {
  TensorView pages;  // packed: [num_pages, layout.page_bytes(page_entries)] U8 (68 bytes per key)
                     // plain:  [num_pages, page_entries * layout.width] F32
  IndexLayoutFp4 layout;
  int page_entries = 0;

  bool empty() const { return pages.empty(); }
  bool packed() const { return pages.dtype == DType::kU8; }
  int64_t num_rows() const { return pages.dim(0) * page_entries; }
};

void check(const char* what, const KvPool& pool);
void check(const char* what, const IndexPool& pool);

// Checks that every id is negative or below num_rows. For host memory, so only CPU implementations
// call it.
void check_row_ids(const char* what, const ConstTensorView& ids, int64_t num_rows);

// Reads one row into f32; `row` must be valid. x: [width]
void load_row(const KvPool& pool, int64_t row, float* x);
void load_row(const IndexPool& pool, int64_t row, float* x);

}  // namespace dsv4
