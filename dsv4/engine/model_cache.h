// The cache of one model: plans pages from the config, owns the KvCache and hands out per-layer
// views.
//
//   group 0  window  1 token an entry, the last W tokens of a sequence
//   group 1  CSA     4 tokens an entry; attention entries and indexer keys share page numbers
//   group 2  HCA     128 tokens an entry
//
// Official numerics stores packed rows (584 bytes an entry and 68 an indexer key at the released
// dims), exact numerics plain f32.

#pragma once

#include <vector>

#include "dsv4/cache/kv_cache.h"
#include "dsv4/model/batch.h"
#include "dsv4/model/config.h"
#include "dsv4/ops/op.h"

namespace dsv4 {

struct CacheLimits {
  int64_t max_tokens = 0;  // per sequence, prompt and answer
  int max_sequences = 1;
  int64_t max_batch_tokens = 0;  // per step, over all sequences
};

class ModelCache {
 public:
  ModelCache(const ModelConfig& config, Numerics numerics, const CacheLimits& limits);

  KvCache& pages() { return cache_; }
  const KvCache& pages() const { return cache_; }
  std::span<const LayerCache> layers() const { return layers_; }
  const CacheLimits& limits() const { return limits_; }
  // Where the next `count` tokens of a sequence go; their room must have been reserved.
  SequenceRun run(SeqId seq, int64_t first, int64_t count) const;

 private:
  struct LayerIndex {
    int window = -1, entries = -1, keys = -1, state = -1, index_state = -1;
  };
  static CachePlan plan(const ModelConfig& config, Numerics numerics, const CacheLimits& limits,
                        std::vector<LayerIndex>& index);
  LayerCache view(const ModelConfig& config, int ratio, const LayerIndex& index) const;

  CacheLimits limits_;
  std::vector<LayerIndex> index_;
  KvCache cache_;
  std::vector<LayerCache> layers_;
};

}  // namespace dsv4
