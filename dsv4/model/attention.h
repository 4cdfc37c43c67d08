// The attention block of one layer: assembles the arguments of attention_in, index_select,
// sparse_mla and attention_out (docs/spec/dsv4.md 4, 5, 6).

#pragma once

#include <deque>

#include "dsv4/model/schedule.h"
#include "dsv4/model/step.h"
#include "dsv4/model/weights.h"

namespace dsv4 {

// RoPE frequencies of a layer: one table for q, raw keys, entries, indexer and output
// (docs/spec/dsv4.md 4.2).
struct RopeTables {
  ConstTensorView raw;         // [rope_dim / 2] f32, SWA layers
  ConstTensorView compressed;  // CSA and HCA layers
};
// Appends the tables' memory to `owner`.
RopeTables make_rope_tables(const ModelConfig& config, std::deque<Buffer>& owner);

// Computes the boundary before the block, then the block from its x; y: [T, D]. Appends this step's
// tokens to the caches.
void run_attention(Step& step, const LayerSpec& spec, const AttentionWeights& weights,
                   const RopeTables& rope, const LayerCache& cache, const HcBoundaryArgs& boundary,
                   const TensorView& y);

}  // namespace dsv4
