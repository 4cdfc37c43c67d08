// Random prefill batches and paged keys for the tests and benchmarks of block_sparse_attention,
// xattn_scores and xattn_select.

#pragma once

#include <algorithm>
#include <initializer_list>
#include <utility>
#include <vector>

#include "dsv4/ops/xattn/attention/block_sparse_attention.h"
#include "tests/harness/fill.h"

namespace dsv4::test {

struct Lengths {
  int queries, keys;
};

template <class Memory>
PrefillBatch prefill_batch(Memory& memory, const std::vector<Lengths>& lengths, bool causal) {
  const auto b = static_cast<int64_t>(lengths.size());
  const TensorView cu_q = memory.input(DType::kI32, {b + 1}),
                   cu_kv = memory.input(DType::kI32, {b + 1});
  memory.keep_order(cu_q);
  memory.keep_order(cu_kv);
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

// Gives every sequence distinct pages of a pool in a shuffled order. [b, pages of the longest]
template <class Memory>
TensorView random_page_table(Memory& memory, Rng& rng, const PrefillBatch& batch,
                             int64_t page_size) {
  const int64_t positions = max_k_blocks(batch, 128) * 128;
  const TensorView table =
      memory.input(DType::kI32, {batch.size(), ceil_div(positions, page_size)});
  const int64_t n = table.numel();
  for (int64_t i = 0; i < n; ++i) table.as<int>()[i] = static_cast<int>(i);
  for (int64_t i = n - 1; i > 0; --i)
    std::swap(table.as<int>()[i], table.as<int>()[rng.below(i + 1)]);
  return table;
}

// Keys or values of a batch as rows [t_kv, heads, d]; with a table, in pages of `page_size`, with
// NaN where no sequence has a key.
template <class Memory, class Random>
TensorView random_kv(Memory& memory, Random& random, DType dtype, const PrefillBatch& batch,
                     int64_t heads, int64_t d, const ConstTensorView& table, int64_t page_size) {
  const int64_t t_kv = batch.cu_kv.as<int>()[batch.size()];
  const TensorView rows = memory.input(dtype, {t_kv, heads, d});
  fill_normal(rows, random);
  if (table.empty()) return rows;
  const TensorView pages = memory.input(dtype, {table.numel(), page_size, heads, d});
  const auto bytes = static_cast<size_t>(heads * d * item_bytes(dtype));
  std::fill_n(pages.data, pages.bytes(), std::byte{0xff});
  for (int i = 0; i < batch.size(); ++i) {
    const PrefillSequence s = sequence_of(batch, i);
    for (int64_t j = 0; j < s.keys; ++j) {
      const int64_t page = table.as<int>()[i * table.dim(1) + j / page_size];
      std::copy_n(rows.data + static_cast<size_t>(s.first_kv + j) * bytes, bytes,
                  pages.data + static_cast<size_t>(page * page_size + j % page_size) * bytes);
    }
  }
  return pages;
}

}  // namespace dsv4::test
