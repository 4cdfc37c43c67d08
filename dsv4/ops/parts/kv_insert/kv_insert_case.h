// Oracles of kv_insert.h, and random arguments for its tests and benchmarks.

#pragma once

#include <algorithm>
#include <cmath>
#include <set>
#include <vector>

#include "dsv4/base/bits.h"
#include "dsv4/ops/parts/kv_insert/kv_insert.h"
#include "tests/harness/fill.h"

namespace dsv4 {

// [n, width]; rows with a negative id are left out.
std::vector<double> kv_insert_oracle(const KvInsertArgs& args);
std::vector<double> index_insert_oracle(const IndexInsertArgs& args);

}  // namespace dsv4

namespace dsv4::test {

inline constexpr auto kUntouched = std::byte{0x5c};

inline int64_t width_of(const KvPool& pool) {
  return pool.layout.width();
}
inline int64_t width_of(const IndexPool& pool) {
  return pool.layout.width;
}

template <class Memory>
KvPool kv_pool(Memory& memory, const KvLayout& layout, int64_t pages, int entries, bool packed) {
  return {.pages = packed ? memory.inout(DType::kU8, {pages, layout.page_bytes(entries)})
                          : memory.inout(DType::kF32, {pages, entries * layout.width()}),
          .layout = layout,
          .page_entries = entries};
}
template <class Memory>
IndexPool index_pool(Memory& memory, int width, int64_t pages, int entries, bool packed) {
  const IndexLayoutFp4 layout{width};
  return {.pages = packed ? memory.inout(DType::kU8, {pages, layout.page_bytes(entries)})
                          : memory.inout(DType::kF32, {pages, int64_t{entries} * width}),
          .layout = layout,
          .page_entries = entries};
}

// About a third of the tokens are skipped; the others go to distinct random rows.
inline void fill_rows(const TensorView& rows, int64_t num_rows, Rng& rng) {
  std::set<int64_t> used;
  for (int64_t i = 0; i < rows.numel(); ++i) {
    int64_t row = rng.below(num_rows);
    if (rng.uniform() < 0.3 || !used.insert(row).second) row = -1 - rng.below(5);
    rows.as<int32_t>()[i] = static_cast<int32_t>(row);
  }
}

// Values of very different magnitude, zeros included, so that scales vary and reach their floor.
inline void fill_values(const TensorView& x, Rng& rng) {
  for (int64_t i = 0; i < x.numel(); ++i) {
    const double size = i / 32 % 5 == 0 ? 0.0 : std::exp2(static_cast<double>(i / 32 % 23) - 12);
    set_value(x, i, size * rng.normal());
  }
}

// n tokens for a pool whose rows are untouched.
template <class Args, class Memory, class Pool>
Args random_insert(Memory& memory, Rng& rng, const Pool& pool, int64_t n, DType dtype) {
  const TensorView x = memory.input(dtype, {n, width_of(pool)}),
                   rows = memory.input(DType::kI32, {n});
  fill_values(x, rng);
  fill_rows(rows, pool.num_rows(), rng);
  std::fill_n(pool.pages.data, pool.pages.bytes(), kUntouched);
  return {.x = x, .rows = rows, .pool = pool};
}

// A packed pool with a row for each of its n random tokens, in their order.
template <class Args, class Memory, class Random, class Layout>
Args filled_pool(Memory& memory, Random& random, const Layout& layout, int64_t n,
                 DType dtype = DType::kBF16) {
  constexpr int kPageEntries = 64;
  Args args;
  args.pool.layout = layout, args.pool.page_entries = kPageEntries;
  args.pool.pages = memory.inout(
      DType::kU8, {ceil_div(n, int64_t{kPageEntries}), layout.page_bytes(kPageEntries)});
  const TensorView x = memory.input(dtype, {n, width_of(args.pool)}),
                   rows = memory.input(DType::kI32, {n});
  fill_normal(x, random);
  for (int64_t i = 0; i < n; ++i) rows.as<int32_t>()[i] = static_cast<int32_t>(i);
  args.x = x, args.rows = rows;
  return args;
}

}  // namespace dsv4::test
