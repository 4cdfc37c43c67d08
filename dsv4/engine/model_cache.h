// The cache of one model: page tables, and the memory that plan_cache() describes as per-layer
// views.

#pragma once

#include <vector>

#include "dsv4/cache/page_tables.h"
#include "dsv4/cache/pools.h"
#include "dsv4/engine/cache_plan.h"
#include "dsv4/model/batch.h"

namespace dsv4 {

class ModelCache {
 public:
  ModelCache(const ModelConfig& config, Numerics numerics, const CacheLimits& limits,
             Memory& memory);

  PageTables& tables() { return tables_; }
  const PageTables& tables() const { return tables_; }
  std::span<const LayerCache> layers() const { return layers_; }  // the drafter's last
  std::span<const LayerCache> drafter_layers() const { return layers().subspan(model_layers_); }
  // [max_sequences, m, D] in the dtype of activations: streams of each sequence's newest token, by
  // its slot; rank 0: no drafter wants them
  TensorView streams() const;
  const CacheLimits& limits() const { return limits_; }
  const CachePlan& plan() const { return layout_.plan; }
  const CachePools& pools() const { return pools_; }
  // Where the next `count` tokens of a sequence go; their room must have been reserved.
  SequenceRun run(SeqId seq, int64_t first, int64_t count) const;

 private:
  LayerCache view(const ModelConfig& config, const LayerSpec& spec,
                  const CacheLayout::Layer& index) const;
  int32_t block_row(int32_t slot) const;

  CacheLimits limits_;
  TensorMeta streams_;
  CacheLayout layout_;
  PageTables tables_;
  CachePools pools_;
  std::vector<LayerCache> layers_;
  size_t model_layers_ = 0;  // of layers_; the others are the drafter's
};

}  // namespace dsv4
