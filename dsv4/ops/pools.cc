#include "dsv4/ops/pools.h"

#include <cstring>

#include "dsv4/base/error.h"
#include "dsv4/formats/float16.h"
#include "dsv4/formats/pack_index_key.h"
#include "dsv4/formats/pack_kv_entry.h"

namespace dsv4 {

void check(const char* what, const KvPool& pool) {
  DSV4_CHECK(pool.page_entries > 0, "{}: page_entries={}", what, pool.page_entries);
  if (!pool.packed()) {
    return expect(what, pool.pages, {DType::kF32, DType::kBF16},
                  {pool.pages.dim(0), int64_t{pool.page_entries} * pool.layout.width()});
  }
  DSV4_CHECK(pool.layout.nope % pool.layout.group() == 0,
             "{}: packed rows need nope % {} == 0, got {}", what, pool.layout.group(),
             pool.layout.nope);
  expect(what, pool.pages, {DType::kU8},
         {pool.pages.dim(0), pool.layout.page_bytes(pool.page_entries)});
}

void check(const char* what, const IndexPool& pool) {
  DSV4_CHECK(pool.page_entries > 0, "{}: page_entries={}", what, pool.page_entries);
  if (!pool.packed()) {
    return expect(what, pool.pages, {DType::kF32},
                  {pool.pages.dim(0), int64_t{pool.page_entries} * pool.layout.width});
  }
  DSV4_CHECK(pool.layout.width % IndexLayoutFp4::kGroup == 0,
             "{}: packed keys need width % {} == 0, got {}", what, IndexLayoutFp4::kGroup,
             pool.layout.width);
  expect(what, pool.pages, {DType::kU8},
         {pool.pages.dim(0), pool.layout.page_bytes(pool.page_entries)});
}

void check_row_ids(const char* what, const ConstTensorView& ids, int64_t num_rows) {
  const int64_t n = ids.dim(-1), lists = n == 0 ? 0 : ids.numel() / n;
  for (int64_t i = 0; i < lists; ++i) {
    const int32_t* list = ids.row<int32_t>(i);
    for (int64_t j = 0; j < n; ++j) {
      DSV4_CHECK(list[j] < num_rows, "{}[{}, {}] is row {} of a pool of {}", what, i, j, list[j],
                 num_rows);
    }
  }
}

void load_row(const KvPool& pool, int64_t row, float* x) {
  const int64_t page = row / pool.page_entries, entry = row % pool.page_entries;
  if (pool.packed()) {
    return unpack_kv_entry(pool.layout, pool.pages.row<uint8_t>(page), pool.page_entries, entry, x);
  }
  const int64_t width = pool.layout.width();
  if (pool.pages.dtype == DType::kBF16) {
    const uint16_t* values = pool.pages.row<uint16_t>(page) + entry * width;
    for (int64_t c = 0; c < width; ++c) x[c] = bf16_to_f32(values[c]);
    return;
  }
  std::memcpy(x, pool.pages.row<float>(page) + entry * width,
              static_cast<size_t>(width) * sizeof(float));
}

void load_row(const IndexPool& pool, int64_t row, float* x) {
  const int64_t page = row / pool.page_entries, entry = row % pool.page_entries;
  if (pool.packed()) {
    return unpack_index_key(pool.layout, pool.pages.row<uint8_t>(page), pool.page_entries, entry,
                            x);
  }
  const int64_t width = pool.layout.width;
  std::memcpy(x, pool.pages.row<float>(page) + entry * width,
              static_cast<size_t>(width) * sizeof(float));
}

}  // namespace dsv4
