// Random prefill batches for the tests of block_sparse_attention, xattn_scores and xattn_select.

#pragma once

#include <algorithm>
#include <utility>
#include <vector>

#include "dsv4/ops/xattn/attention/block_sparse_attention.h"
#include "tests/harness/arena.h"

namespace dsv4::test {

struct Lengths {
  int queries, keys;
};

inline PrefillBatch prefill_batch(Arena& arena, const std::vector<Lengths>& lengths, bool causal) {
  const auto b = static_cast<int64_t>(lengths.size());
  const TensorView cu_q = arena.input(DType::kI32, {b + 1}),
                   cu_kv = arena.input(DType::kI32, {b + 1});
  arena.keep_order(cu_q);
  arena.keep_order(cu_kv);
  int *q = cu_q.as<int>(), *kv = cu_kv.as<int>();
  q[0] = kv[0] = 0;
  for (size_t i = 0; i < lengths.size(); ++i) {
    q[i + 1] = q[i] + lengths[i].queries;
    kv[i + 1] = kv[i] + lengths[i].keys;
  }
  return {.cu_q = cu_q, .cu_kv = cu_kv, .causal = causal};
}

inline PrefillSequence sequence_of(const PrefillBatch& batch, int i) {
  return prefill_sequence(batch.cu_q.as<int>(), batch.cu_kv.as<int>(), i, batch.causal);
}

// The most of any sequence, at least 1.
inline int64_t max_q_blocks(const PrefillBatch& batch, int block) {
  int most = 1;
  for (int i = 0; i < batch.size(); ++i) {
    most = std::max(most, sequence_of(batch, i).num_q_blocks(block));
  }
  return most;
}
inline int64_t max_k_blocks(const PrefillBatch& batch, int block) {
  int most = 1;
  for (int i = 0; i < batch.size(); ++i) {
    most = std::max(most, sequence_of(batch, i).num_k_blocks(block));
  }
  return most;
}

// Keys or values of a batch as rows [t_kv, heads, d], and the same in pages that lie in random
// order, with NaN where no sequence has a key.
struct PagedKv {
  TensorView rows, pages;
};

inline PagedKv random_kv(Arena& arena, Rng& rng, DType dtype, const PrefillBatch& batch,
                         int64_t heads, int64_t d, const ConstTensorView& table, int64_t page_size,
                         int64_t num_pages) {
  const int64_t t_kv = batch.cu_kv.as<int>()[batch.size()];
  PagedKv kv{.rows = arena.input(dtype, {t_kv, heads, d}),
             .pages = arena.input(dtype, {num_pages, page_size, heads, d})};
  fill_normal(kv.rows, rng);
  const auto bytes = static_cast<size_t>(heads * d * item_bytes(dtype));
  std::fill_n(kv.pages.data, kv.pages.bytes(), std::byte{0xff});
  for (int i = 0; i < batch.size(); ++i) {
    const PrefillSequence s = sequence_of(batch, i);
    for (int64_t j = 0; j < s.keys; ++j) {
      const int64_t page = table.as<int>()[i * table.dim(1) + j / page_size];
      std::copy_n(kv.rows.data + static_cast<size_t>(s.first_kv + j) * bytes, bytes,
                  kv.pages.data + static_cast<size_t>(page * page_size + j % page_size) * bytes);
    }
  }
  return kv;
}

// A table that gives every sequence distinct pages in a shuffled order. Returns their number.
inline int64_t fill_page_table(const TensorView& table, Rng& rng) {
  const int64_t n = table.numel();
  for (int64_t i = 0; i < n; ++i) table.as<int>()[i] = static_cast<int>(i);
  for (int64_t i = n - 1; i > 0; --i)
    std::swap(table.as<int>()[i], table.as<int>()[rng.below(i + 1)]);
  return n;
}

}  // namespace dsv4::test
