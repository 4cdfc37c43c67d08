// Random arguments of block_sparse_attention in test memory.

#pragma once

#include <cmath>
#include <vector>

#include "dsv4/ops/xattn/attention/block_sparse_attention.h"
#include "dsv4/ops/xattn/attention/prefill_case_test.h"

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
};

// Every visible block with probability `density`, and once in a while one that is not visible.
inline BlockLists<ConstTensorView> random_lists(Arena& arena, Rng& rng, const AttentionScene& scene,
                                                const PrefillBatch& batch) {
  const int block = static_cast<int>(scene.block);
  const int64_t rows = max_q_blocks(batch, block), slots = max_k_blocks(batch, block);
  const TensorView counts = arena.input(DType::kI32, {batch.size(), scene.heads, rows});
  const TensorView indices = arena.input(DType::kI32, {batch.size(), scene.heads, rows, slots});
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
          if (rng.uniform() < (j < visible ? scene.density : 0.2)) {
            indices.as<int>()[row * slots + count++] = j;
          }
        }
      }
    }
  }
  return {.counts = counts, .indices = indices};
}

// Random arguments; k and v in pages when the scene says so.
inline BlockSparseAttentionArgs random_args(Arena& arena, Rng& rng, const AttentionScene& scene) {
  const PrefillBatch batch = prefill_batch(arena, scene.lengths, scene.causal);
  const int64_t t_q = batch.cu_q.as<int>()[batch.size()];
  const TensorView q = arena.input(scene.dtype, {t_q, scene.heads, scene.d});
  fill_normal(q, rng);
  const int64_t page_size = scene.page_size == 0 ? 16 : scene.page_size;
  const int64_t positions = max_k_blocks(batch, 128) * 128;
  const TensorView table = arena.input(DType::kI32, {batch.size(), ceil_div(positions, page_size)});
  const int64_t pages = fill_page_table(table, rng);
  const auto kv = [&](int64_t d) {
    const PagedKv both =
        random_kv(arena, rng, scene.dtype, batch, scene.kv_heads, d, table, page_size, pages);
    return scene.page_size == 0 ? both.rows : both.pages;
  };
  BlockSparseAttentionArgs args{.batch = batch, .q = q, .k = kv(scene.d), .v = kv(scene.d_v)};
  if (scene.page_size != 0) args.page_table = table;
  args.block = scene.block;
  if (scene.density <= 1) args.lists = random_lists(arena, rng, scene, batch);
  args.scale = 1.f / std::sqrt(static_cast<float>(scene.d));
  args.out = arena.output(scene.dtype, {t_q, scene.heads, scene.d_v});
  args.lse = arena.output(DType::kF32, {scene.heads, t_q});
  return args;
}

}  // namespace dsv4::test
