#include "dsv4/engine/model_cache.h"

#include <algorithm>

#include "dsv4/base/bits.h"

namespace dsv4 {
namespace {

constexpr int kWindow = 0, kCsa = 1, kHca = 2;
// Page sizes of other engines (spec 12.2), so that rows can be exchanged: 256 tokens a compressed
// page.
constexpr int kWindowPage = 64, kCsaPage = 64, kHcaPage = 2;

KvLayout kv_layout(const ModelConfig& c) {
  return {.nope = static_cast<int>(c.head_dim - c.rope_dim), .rope = static_cast<int>(c.rope_dim)};
}
IndexLayoutFp4 index_layout(const ModelConfig& c) {
  return {.width = static_cast<int>(c.index_dim)};
}

CachePlan::Pool kv_pool(const ModelConfig& c, Numerics numerics, int group, int page_entries) {
  const KvLayout layout = kv_layout(c);
  if (numerics == Numerics::kExact)
    return {group, DType::kF32, int64_t{page_entries} * layout.width()};
  return {group, DType::kU8, layout.page_bytes(page_entries)};
}

CachePlan::Pool key_pool(const ModelConfig& c, Numerics numerics) {
  const IndexLayoutFp4 layout = index_layout(c);
  if (numerics == Numerics::kExact) return {kCsa, DType::kF32, int64_t{kCsaPage} * layout.width};
  return {kCsa, DType::kU8, layout.page_bytes(kCsaPage)};
}

// Pages of a group that keeps everything.
CachePlan::Group whole_group(int ratio, int page_entries, const CacheLimits& limits) {
  return {.tokens_per_entry = ratio,
          .page_entries = page_entries,
          .num_pages = limits.max_sequences * ceil_div(limits.max_tokens / ratio, page_entries)};
}

// A sequence that adds c tokens holds W - 1 + c tokens at once, on at most two pages more than full
// ones.
CachePlan::Group window_group(int64_t window, const CacheLimits& limits) {
  const int64_t kept = ceil_div(window - 1, kWindowPage) + 2;
  const int64_t sliding =
      limits.max_sequences * kept + ceil_div(limits.max_batch_tokens, kWindowPage);
  const int64_t whole = limits.max_sequences * ceil_div(limits.max_tokens, kWindowPage);
  return {.tokens_per_entry = 1,
          .page_entries = kWindowPage,
          .num_pages = std::min(sliding, whole),
          .keep_tokens = window};
}

}  // namespace

CachePlan ModelCache::plan(const ModelConfig& config, Numerics numerics, const CacheLimits& limits,
                           std::vector<LayerIndex>& index) {
  CachePlan plan{.groups = {window_group(config.window, limits), whole_group(4, kCsaPage, limits),
                            whole_group(128, kHcaPage, limits)},
                 .max_sequences = limits.max_sequences};
  const auto add_pool = [&](const CachePlan::Pool& pool) {
    plan.pools.push_back(pool);
    return static_cast<int>(plan.pools.size()) - 1;
  };
  const auto add_state = [&](int ratio, int64_t width) {
    plan.states.push_back({.ratio = ratio, .width = static_cast<int>(width)});
    return static_cast<int>(plan.states.size()) - 1;
  };
  for (const int ratio : config.ratios) {
    LayerIndex layer{.window = add_pool(kv_pool(config, numerics, kWindow, kWindowPage))};
    if (ratio != 0) {
      const bool csa = ratio == 4;
      layer.entries =
          add_pool(kv_pool(config, numerics, csa ? kCsa : kHca, csa ? kCsaPage : kHcaPage));
      layer.state = add_state(ratio, config.head_dim);
      if (csa) {
        layer.keys = add_pool(key_pool(config, numerics));
        layer.index_state = add_state(ratio, config.index_dim);
      }
    }
    index.push_back(layer);
  }
  return plan;
}

ModelCache::ModelCache(const ModelConfig& config, Numerics numerics, const CacheLimits& limits)
    : limits_(limits), cache_(plan(config, numerics, limits, index_)) {
  for (size_t l = 0; l < index_.size(); ++l)
    layers_.push_back(view(config, config.ratios[l], index_[l]));
}

LayerCache ModelCache::view(const ModelConfig& config, int ratio, const LayerIndex& index) const {
  LayerCache layer{.window = {cache_.pool(index.window), kv_layout(config), kWindowPage}};
  if (index.entries >= 0) {
    layer.entries = {cache_.pool(index.entries), kv_layout(config),
                     ratio == 4 ? kCsaPage : kHcaPage};
    layer.state = cache_.state(index.state);
  }
  if (index.keys >= 0) {
    layer.keys = {cache_.pool(index.keys), index_layout(config), kCsaPage};
    layer.index_state = cache_.state(index.index_state);
  }
  return layer;
}

SequenceRun ModelCache::run(SeqId seq, int64_t first, int64_t count) const {
  return {.first = first,
          .count = count,
          .position = cache_.length(seq),
          .slot = static_cast<int32_t>(seq),
          .window_pages = cache_.pages(seq, kWindow),
          .csa_pages = cache_.pages(seq, kCsa),
          .hca_pages = cache_.pages(seq, kHca)};
}

}  // namespace dsv4
