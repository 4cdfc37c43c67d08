#include "dsv4/ops/kv_insert/kv_insert_cpu.h"

#include <algorithm>
#include <vector>

#include "dsv4/cpu/rows.h"

namespace dsv4 {
namespace {

// Two tokens in one row would race, so a repeated id is an error.
void check_distinct(const ConstTensorView& rows) {
  std::vector<int32_t> ids(rows.as<int32_t>(), rows.as<int32_t>() + rows.numel());
  std::erase_if(ids, [](int32_t id) { return id < 0; });
  std::sort(ids.begin(), ids.end());
  const auto twin = std::adjacent_find(ids.begin(), ids.end());
  DSV4_CHECK(twin == ids.end(), "row {} is written twice", *twin);
}

void write_row(const KvPool& pool, int64_t row, const float* x) {
  const int64_t page = row / pool.page_entries, entry = row % pool.page_entries;
  if (pool.packed()) {
    pack_kv_entry(pool.layout, x, pool.pages.row<uint8_t>(page), pool.page_entries, entry);
  } else {
    const int64_t width = pool.layout.width();
    std::copy_n(x, width, pool.pages.row<float>(page) + entry * width);
  }
}

void write_row(const IndexPool& pool, int64_t row, const float* x) {
  const int64_t page = row / pool.page_entries, entry = row % pool.page_entries;
  if (pool.packed()) {
    pack_index_key(pool.layout, x, pool.pages.row<uint8_t>(page), pool.page_entries, entry);
  } else {
    const int64_t width = pool.layout.width;
    std::copy_n(x, width, pool.pages.row<float>(page) + entry * width);
  }
}

template <class Args>
void insert(const Args& args) {
  check_row_ids("rows", args.rows, args.pool.num_rows());
  check_distinct(args.rows);
  const int64_t n = args.x.dim(0), width = args.x.dim(1);
  const int32_t* rows = args.rows.template as<int32_t>();
#pragma omp parallel if (n > 1)
  {
    std::vector<float> x(static_cast<size_t>(width));
#pragma omp for
    for (int64_t i = 0; i < n; ++i) {
      if (rows[i] < 0) continue;
      cpu::load(args.x, i * args.x.row_stride(), width, x.data());
      write_row(args.pool, rows[i], x.data());
    }
  }
}

}  // namespace

void kv_insert_cpu(const Context&, const KvInsertArgs& args) {
  insert(args);
}

void index_insert_cpu(const Context&, const IndexInsertArgs& args) {
  insert(args);
}

}  // namespace dsv4
