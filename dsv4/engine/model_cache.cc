#include "dsv4/engine/model_cache.h"

namespace dsv4 {

ModelCache::ModelCache(const ModelConfig& config, Numerics numerics, const CacheLimits& limits,
                       Memory& memory)
    : limits_(limits), layout_(plan_cache(config, numerics, limits)), cache_(layout_.plan, memory) {
  for (size_t l = 0; l < layout_.layers.size(); ++l)
    layers_.push_back(view(config, config.ratios[l], layout_.layers[l]));
}

LayerCache ModelCache::view(const ModelConfig& config, int ratio,
                            const CacheLayout::Layer& index) const {
  LayerCache layer{.window = {cache_.pool(index.window), entry_layout(config), kWindowPageEntries}};
  if (index.entries >= 0) {
    layer.entries = {cache_.pool(index.entries), entry_layout(config),
                     ratio == 4 ? kCsaPageEntries : kHcaPageEntries};
    layer.state = cache_.state(index.state);
  }
  if (index.keys >= 0) {
    layer.keys = {cache_.pool(index.keys), key_layout(config), kCsaPageEntries};
    layer.index_state = cache_.state(index.index_state);
  }
  return layer;
}

SequenceRun ModelCache::run(SeqId seq, int64_t first, int64_t count) const {
  return {.first = first,
          .count = count,
          .position = cache_.length(seq),
          .slot = static_cast<int32_t>(seq),
          .window_pages = cache_.pages(seq, kWindowGroup),
          .csa_pages = cache_.pages(seq, kCsaGroup),
          .hca_pages = cache_.pages(seq, kHcaGroup)};
}

}  // namespace dsv4
