// The attention block of one layer: projections, caches, compressor, indexer, sparse MQA, output
// path (docs/spec/dsv4.md 4, 5, 6).

#pragma once

#include <deque>

#include "dsv4/model/schedule.h"
#include "dsv4/model/step.h"
#include "dsv4/model/weights.h"

namespace dsv4 {

// Indexer scores are computed for this many queries at a time: [64, visible] f32 fits in cache.
inline constexpr int64_t kScoreTile = 64;

// RoPE frequencies of a layer: one table for q, raw keys, entries, indexer and output
// (docs/spec/dsv4.md 4.2).
struct RopeTables {
  ConstTensorView raw;         // [rope_dim / 2] f32, SWA layers
  ConstTensorView compressed;  // CSA and HCA layers
};
// Appends the tables' memory to `owner`.
RopeTables make_rope_tables(const ModelConfig& config, std::deque<Buffer>& owner);

// x: [T, D] after attn_norm -> [T, D], in scratch. Appends this step's tokens to the caches.
TensorView attention(Step& step, const LayerSpec& spec, const AttentionWeights& weights,
                     const RopeTables& rope, const LayerCache& cache, const ConstTensorView& x);

}  // namespace dsv4
