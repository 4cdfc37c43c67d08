#include "dsv4/ops/parts/kv_insert/kv_insert.h"

#include <algorithm>
#include <vector>

#include "dsv4/base/not_finite.h"
#include "dsv4/cpu/parallel.h"
#include "dsv4/cpu/quant.h"
#include "dsv4/cpu/rows.h"
#include "dsv4/cpu/vec.h"
#include "dsv4/formats/finite.h"
#include "dsv4/formats/pack_kv_entry.h"

namespace dsv4::kv_insert_kernel::cpu {
namespace {

// Two tokens for one row would be a race, so a repeated id is an error.
void check_distinct(const ConstTensorView& rows) {
  std::vector<int32_t> ids(rows.as<int32_t>(), rows.as<int32_t>() + rows.numel());
  std::erase_if(ids, [](int32_t id) { return id < 0; });
  std::sort(ids.begin(), ids.end());
  const auto twin = std::adjacent_find(ids.begin(), ids.end());
  DSV4_CHECK(twin == ids.end(), "row {} is written twice", *twin);
}

// pack_kv_entry() and pack_index_key() of formats/, vectorized but for V3.2 rows.
void pack_row(const KvPool& pool, uint8_t* page, int64_t entry, const float* x) {
  const KvLayout& layout = pool.layout;
  if (layout.v32()) return pack_kv_entry(layout, x, page, pool.page_entries, entry);
  uint8_t* codes = page + layout.entry_offset(entry);
  uint8_t* scales = page + layout.scale_offset(pool.page_entries, entry);
  dsv4::cpu::quantize_q8_row(x, layout.nope, layout.group(), codes, scales);
  std::fill(scales + layout.num_scales(), scales + layout.scale_bytes(), uint8_t{0});
  dsv4::cpu::narrow_bf16(x + layout.nope, reinterpret_cast<uint16_t*>(codes + layout.nope),
                         layout.rope);
}

void pack_row(const IndexPool& pool, uint8_t* page, int64_t entry, const float* x) {
  const IndexLayoutFp4& layout = pool.layout;
  dsv4::cpu::quantize_q4_row(x, layout.width, IndexLayoutFp4::kGroup,
                             page + layout.code_offset(entry),
                             page + layout.scale_offset(pool.page_entries, entry));
}

template <class Pool>
void write_row(const Pool& pool, int64_t row, const float* x, int64_t width) {
  const int64_t page = row / pool.page_entries, entry = row % pool.page_entries;
  if (pool.packed()) {
    pack_row(pool, pool.pages.template row<uint8_t>(page), entry, x);
  } else {
    std::copy_n(x, width, pool.pages.template row<float>(page) + entry * width);
  }
}

template <class Args>
void insert(const Args& args) {
  check_row_ids("rows", args.rows, args.pool.num_rows());
  check_distinct(args.rows);
  const int64_t n = args.x.dim(0), width = args.x.dim(1);
  const int32_t* rows = args.rows.template as<int32_t>();
#pragma omp parallel if (n > 1 && dsv4::cpu::worth_sharing(10 * n * width))
  {
    std::vector<float> x(static_cast<size_t>(width));
#pragma omp for
    for (int64_t i = 0; i < n; ++i) {
      if (rows[i] < 0) continue;
      dsv4::cpu::load(args.x, i * args.x.row_stride(), width, x.data());
      write_row(args.pool, rows[i], x.data(), width);
    }
  }
}

// 4-bit codes have no NaN. Skipped rows may hold anything.
void check_numbers(const IndexInsertArgs& args) {
  const int32_t* rows = args.rows.as<int32_t>();
  for (int64_t i = 0; i < args.x.dim(0); ++i) {
    if (rows[i] < 0) continue;
    const auto at = first_non_finite(args.x.slice(0, i, i + 1));
    if (at)
      throw NotFinite(
          fmt::format("value {} of key {} is not finite: 4-bit codes hold numbers only", *at, i));
  }
}

}  // namespace

void run(const Context&, const KvInsertArgs& args) {
  insert(args);
}

void run(const Context&, const IndexInsertArgs& args) {
  if (args.pool.packed()) check_numbers(args);
  insert(args);
}

}  // namespace dsv4::kv_insert_kernel::cpu
