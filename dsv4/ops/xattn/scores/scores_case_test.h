// Random arguments of xattn_scores in test memory.

#pragma once

#include <cmath>
#include <vector>

#include "dsv4/ops/xattn/attention/prefill_case_test.h"
#include "dsv4/ops/xattn/scores/xattn_scores.h"

namespace dsv4::test {

struct ScoresScene {
  std::vector<Lengths> lengths;
  bool causal = true;
  int64_t stride = 8;
  int64_t heads = 2, kv_heads = 1, d = 128;
  DType dtype = DType::kBF16;
  int64_t block = 128, page_size = 0;
  double sigma = 2;  // of q: the softmax of random scores is flat otherwise
};

inline XattnScoresArgs random_args(Arena& arena, Rng& rng, const ScoresScene& scene) {
  XattnScoresArgs args{.batch = prefill_batch(arena, scene.lengths, scene.causal)};
  const int64_t b = args.batch.size(), t_q = args.batch.cu_q.as<int>()[b];
  const TensorView q = arena.input(scene.dtype, {t_q, scene.heads, scene.d});
  fill_normal(q, rng, scene.sigma * std::sqrt(static_cast<double>(scene.stride)));
  args.q = q;
  const int64_t page_size = scene.page_size == 0 ? 16 : scene.page_size;
  const int64_t positions = max_k_blocks(args.batch, 128) * 128;
  const TensorView table = arena.input(DType::kI32, {b, ceil_div(positions, page_size)});
  const int64_t pages = fill_page_table(table, rng);
  const PagedKv k = random_kv(arena, rng, scene.dtype, args.batch, scene.kv_heads, scene.d, table,
                              page_size, pages);
  args.k = scene.page_size == 0 ? k.rows : k.pages;
  if (scene.page_size != 0) args.page_table = table;
  args.block = scene.block, args.stride = scene.stride;
  args.scale = 1.f / std::sqrt(static_cast<float>(scene.d));
  // More room than needed, in both axes.
  const int block = static_cast<int>(scene.block);
  args.sums = arena.output(DType::kF32, {b, scene.heads, max_q_blocks(args.batch, block) + 1,
                                         max_k_blocks(args.batch, block) + 2});
  return args;
}

}  // namespace dsv4::test
