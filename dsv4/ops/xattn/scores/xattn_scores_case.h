// fp64 oracle of xattn_scores.h, and random arguments for its tests and benchmarks.

#pragma once

#include <cmath>
#include <vector>

#include "dsv4/ops/xattn/attention/prefill_batch_case.h"
#include "dsv4/ops/xattn/scores/xattn_scores.h"

namespace dsv4 {

std::vector<double> xattn_scores_oracle(const XattnScoresArgs& args);  // [b, h, q_blocks, k_blocks]

}  // namespace dsv4

namespace dsv4::test {

struct ScoresScene {
  std::vector<Lengths> lengths;
  bool causal = true;
  int64_t stride = 8;
  int64_t heads = 2, kv_heads = 1, d = 128;
  DType dtype = DType::kBF16;
  int64_t block = 128, page_size = 0;
  bool spare = true;  // more room than needed, in both axes of the sums
  double sigma = 2;   // of q: the softmax of random scores is flat otherwise
};

template <class Memory, class Random>
XattnScoresArgs random_scores(Memory& memory, Random& random, const ScoresScene& scene) {
  XattnScoresArgs args{.batch = prefill_batch(memory, scene.lengths, scene.causal)};
  const int64_t b = args.batch.size(), t_q = args.batch.cu_q.template as<int>()[b];
  const TensorView q = memory.input(scene.dtype, {t_q, scene.heads, scene.d});
  fill_normal(q, random, scene.sigma * std::sqrt(static_cast<double>(scene.stride)));
  args.q = q;
  if (scene.page_size != 0)
    args.page_table = random_page_table(memory, random, args.batch, scene.page_size);
  args.k = random_kv(memory, random, scene.dtype, args.batch, scene.kv_heads, scene.d,
                     args.page_table, scene.page_size);
  args.block = scene.block, args.stride = scene.stride;
  args.scale = 1.f / std::sqrt(static_cast<float>(scene.d));
  const int block = static_cast<int>(scene.block);
  args.sums = memory.output(
      DType::kF32, {b, scene.heads, max_q_blocks(args.batch, block) + (scene.spare ? 1 : 0),
                    max_k_blocks(args.batch, block) + (scene.spare ? 2 : 0)});
  return args;
}

}  // namespace dsv4::test
