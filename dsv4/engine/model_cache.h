// The cache of one model: owns the KvCache that plan_cache() describes and hands out per-layer
// views.

#pragma once

#include <vector>

#include "dsv4/cache/kv_cache.h"
#include "dsv4/engine/cache_plan.h"
#include "dsv4/model/batch.h"

namespace dsv4 {

class ModelCache {
 public:
  ModelCache(const ModelConfig& config, Numerics numerics, const CacheLimits& limits,
             Memory& memory);

  KvCache& pages() { return cache_; }
  const KvCache& pages() const { return cache_; }
  std::span<const LayerCache> layers() const { return layers_; }
  const CacheLimits& limits() const { return limits_; }
  // Where the next `count` tokens of a sequence go; their room must have been reserved.
  SequenceRun run(SeqId seq, int64_t first, int64_t count) const;

 private:
  LayerCache view(const ModelConfig& config, const LayerSpec& spec,
                  const CacheLayout::Layer& index) const;

  CacheLimits limits_;
  CacheLayout layout_;
  KvCache cache_;
  std::vector<LayerCache> layers_;
};

}  // namespace dsv4
