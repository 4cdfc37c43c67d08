// fp64 oracle of block_sparse_attention.h, and random arguments for its tests and benchmarks.

#pragma once

#include <cmath>
#include <vector>

#include "dsv4/ops/xattn/attention/block_sparse_attention.h"
#include "dsv4/ops/xattn/attention/prefill_batch_case.h"

namespace dsv4 {

struct BlockSparseAttentionWant {
  std::vector<double> out;  // [t_q, h_q, d_v]
  std::vector<double> lse;  // [h_q, t_q]
};

// P is not rounded, whatever the numerics.
BlockSparseAttentionWant block_sparse_attention_oracle(const BlockSparseAttentionArgs& args);

}  // namespace dsv4

namespace dsv4::test {

struct AttentionScene {
  std::vector<Lengths> lengths;
  bool causal = true;
  int64_t heads = 2, kv_heads = 1, d = 128, d_v = 128;
  double density = 0.5;  // above 1: no lists
  DType dtype = DType::kBF16;
  Numerics numerics = Numerics::kOfficial;
  int64_t block = 128;
  int64_t page_size = 0;  // 0: rows
  bool ends_listed = false;
};

// Lists every visible block with probability `density`, and once in a while one that is not
// visible; with ends_listed, no such block, but always block 0 and the diagonal.
template <class Memory>
BlockLists<ConstTensorView> random_lists(Memory& memory, Rng& rng, const AttentionScene& scene,
                                         const PrefillBatch& batch) {
  const int block = static_cast<int>(scene.block);
  const int64_t rows = max_q_blocks(batch, block), slots = max_k_blocks(batch, block);
  const TensorView counts = memory.input(DType::kI32, {batch.size(), scene.heads, rows});
  const TensorView indices = memory.input(DType::kI32, {batch.size(), scene.heads, rows, slots});
  std::fill_n(counts.as<int>(), counts.numel(), 0);
  std::fill_n(indices.as<int>(), indices.numel(), -1);
  for (int64_t i = 0; i < batch.size(); ++i) {
    const PrefillSequence s = sequence_of(batch, static_cast<int>(i));
    for (int64_t h = 0; h < scene.heads; ++h) {
      for (int r = 0; r < s.num_q_blocks(block); ++r) {
        const int64_t row = (i * scene.heads + h) * rows + r;
        const int visible = s.visible_blocks(block, s.first_block(block) + r);
        int& count = counts.as<int>()[row];
        for (int j = 0; j < s.num_k_blocks(block); ++j) {
          const bool end = scene.ends_listed && (j == 0 || j + 1 == visible);
          const double unseen = scene.ends_listed ? 0.0 : 0.2;
          if (!end && rng.uniform() >= (j < visible ? scene.density : unseen)) continue;
          indices.as<int>()[row * slots + count++] = j;
        }
      }
    }
  }
  return {.counts = counts, .indices = indices};
}

// k and v are in pages when the scene says so.
template <class Memory, class Random>
BlockSparseAttentionArgs random_attention(Memory& memory, Random& random,
                                          const AttentionScene& scene) {
  const PrefillBatch batch = prefill_batch(memory, scene.lengths, scene.causal);
  const int64_t t_q = batch.cu_q.as<int>()[batch.size()];
  const TensorView q = memory.input(scene.dtype, {t_q, scene.heads, scene.d});
  fill_normal(q, random);
  TensorView table;
  if (scene.page_size != 0) table = random_page_table(memory, random, batch, scene.page_size);
  const auto kv = [&](int64_t d) {
    return random_kv(memory, random, scene.dtype, batch, scene.kv_heads, d, table, scene.page_size);
  };
  BlockSparseAttentionArgs args{.batch = batch, .q = q, .k = kv(scene.d), .v = kv(scene.d_v)};
  if (scene.page_size != 0) args.page_table = table;
  args.block = scene.block;
  if (scene.density <= 1) args.lists = random_lists(memory, random, scene, batch);
  args.scale = 1.f / std::sqrt(static_cast<float>(scene.d));
  args.out = memory.output(scene.dtype, {t_q, scene.heads, scene.d_v});
  args.lse = memory.output(DType::kF32, {scene.heads, t_q});
  return args;
}

}  // namespace dsv4::test
