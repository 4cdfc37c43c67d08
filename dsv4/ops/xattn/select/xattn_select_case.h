// Oracle of xattn_select.h, the rule block by block, and random arguments for its tests and
// benchmarks.

#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "dsv4/formats/float16.h"
#include "dsv4/ops/xattn/attention/prefill_batch_case.h"
#include "dsv4/ops/xattn/select/xattn_select.h"

namespace dsv4 {

struct XattnSelectWant {
  std::vector<double> counts;   // [b, h, q_blocks]
  std::vector<double> indices;  // [b, h, q_blocks, k_blocks]
};

XattnSelectWant xattn_select_oracle(const XattnSelectArgs& args);

}  // namespace dsv4

namespace dsv4::test {

struct SelectScene {
  std::vector<Lengths> lengths;
  bool causal = true;
  int64_t heads = 2, block = 128;
  double tau = 0.9, odd_tau = 0.7;  // odd heads have this share of tau
  int64_t top_k = 0, min_blocks = 0, max_blocks = 1 << 30;
  bool sink = true;
  int64_t min_length = 0, dense_tail = 0;
  std::vector<int> prompt_lengths{};
  bool spare = true;  // more room than needed, in both axes
  // What the scores look like.
  enum class Scores { kRandom, kBf16, kEqual, kZero, kOneBlock, kStrange } scores = Scores::kRandom;
};

inline float score(SelectScene::Scores scores, Rng& rng, int64_t j) {
  switch (scores) {
    case SelectScene::Scores::kRandom:
      return static_cast<float>(std::exp(3 * rng.normal()));
    case SelectScene::Scores::kBf16:  // few distinct values: ties are common
      return round_to_bf16(static_cast<float>(rng.uniform(0.0, 0.02)));
    case SelectScene::Scores::kEqual:
      return 0.25f;
    case SelectScene::Scores::kZero:
      return 0.f;
    case SelectScene::Scores::kOneBlock:
      return j % 7 == 3 ? 15.f : 1e-12f;
    case SelectScene::Scores::kStrange: {
      const float values[] = {std::numeric_limits<float>::quiet_NaN(),
                              -1.f,
                              -0.f,
                              std::numeric_limits<float>::infinity(),
                              1e-42f,
                              5000.f,
                              0.5f};
      return values[rng.below(7)];
    }
  }
  return 0;
}

template <class Memory, class Random>
XattnSelectArgs random_select(Memory& memory, Random& random, const SelectScene& scene) {
  XattnSelectArgs args{.batch = prefill_batch(memory, scene.lengths, scene.causal),
                       .block = scene.block};
  const int block = static_cast<int>(scene.block);
  const int64_t b = args.batch.size(),
                rows = max_q_blocks(args.batch, block) + (scene.spare ? 1 : 0);
  const int64_t slots = max_k_blocks(args.batch, block) + (scene.spare ? 2 : 0);
  const TensorView sums = memory.input(DType::kF32, {b, scene.heads, rows, slots});
  for (int64_t i = 0; i < sums.numel(); ++i) {
    sums.as<float>()[i] = score(scene.scores, random, i % slots);
  }
  args.sums = sums;
  if (scene.top_k == 0) {
    const TensorView tau = memory.input(DType::kF32, {scene.heads});
    for (int64_t h = 0; h < scene.heads; ++h) {
      tau.as<float>()[h] = static_cast<float>(h % 2 == 0 ? scene.tau : scene.tau * scene.odd_tau);
    }
    args.tau = tau;
  }
  args.top_k = scene.top_k, args.min_blocks = scene.min_blocks, args.max_blocks = scene.max_blocks;
  args.sink = scene.sink, args.min_length = scene.min_length, args.dense_tail = scene.dense_tail;
  if (!scene.prompt_lengths.empty()) {
    const TensorView lengths = memory.input(DType::kI32, {b});
    std::copy(scene.prompt_lengths.begin(), scene.prompt_lengths.end(), lengths.as<int>());
    args.prompt_lengths = lengths;
  }
  args.lists = {.counts = memory.output(DType::kI32, {b, scene.heads, rows}),
                .indices = memory.output(DType::kI32, {b, scene.heads, rows, slots})};
  return args;
}

}  // namespace dsv4::test
