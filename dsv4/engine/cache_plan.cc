#include "dsv4/engine/cache_plan.h"

#include <algorithm>

#include "dsv4/base/bits.h"
#include "dsv4/model/schedule.h"

namespace dsv4 {
namespace {

constexpr auto kFloatBytes = static_cast<int64_t>(sizeof(float));

CachePlan::Pool entry_pool(const ModelConfig& c, Numerics numerics, int group, int page_entries) {
  const KvLayout layout = entry_layout(c);
  if (numerics == Numerics::kExact)
    return {group, DType::kF32, int64_t{page_entries} * layout.width()};
  return {group, DType::kU8, layout.page_bytes(page_entries)};
}

CachePlan::Pool key_pool(const ModelConfig& c, Numerics numerics) {
  const IndexLayoutFp4 layout = key_layout(c);
  if (numerics == Numerics::kExact)
    return {kCsaGroup, DType::kF32, int64_t{kCsaPageEntries} * layout.width};
  return {kCsaGroup, DType::kU8, layout.page_bytes(kCsaPageEntries)};
}

// Pages of a group that keeps everything.
CachePlan::Group whole_group(int ratio, int page_entries, const CacheLimits& limits) {
  return {.tokens_per_entry = ratio,
          .page_entries = page_entries,
          .num_pages = limits.max_sequences * ceil_div(limits.max_tokens / ratio, page_entries)};
}

// The W - 1 tokens before the next one, and at both ends a page that is not full.
int64_t window_pages(int64_t window) {
  return ceil_div(window - 1, kWindowPageEntries) + 2;
}

// A sequence that adds c tokens holds W - 1 + c tokens at once.
CachePlan::Group window_group(int64_t window, const CacheLimits& limits) {
  const int64_t sliding = limits.max_sequences * window_pages(window) +
                          ceil_div(limits.max_batch_tokens, kWindowPageEntries);
  const int64_t whole = limits.max_sequences * ceil_div(limits.max_tokens, kWindowPageEntries);
  return {.tokens_per_entry = 1,
          .page_entries = kWindowPageEntries,
          .num_pages = std::min(sliding, whole),
          .keep_tokens = window};
}

int64_t entry_bytes(const ModelConfig& c, Numerics numerics) {
  const KvLayout layout = entry_layout(c);
  return numerics == Numerics::kExact ? layout.width() * kFloatBytes : layout.row_bytes();
}

int64_t key_bytes(const ModelConfig& c, Numerics numerics) {
  const IndexLayoutFp4 layout = key_layout(c);
  return numerics == Numerics::kExact ? layout.width * kFloatBytes : layout.page_bytes(1);
}

}  // namespace

KvLayout entry_layout(const ModelConfig& c) {
  return {.nope = static_cast<int>(c.head_dim - c.rope_dim), .rope = static_cast<int>(c.rope_dim)};
}

IndexLayoutFp4 key_layout(const ModelConfig& c) {
  return {.width = static_cast<int>(c.index_dim)};
}

CacheLayout plan_cache(const ModelConfig& config, Numerics numerics, const CacheLimits& limits) {
  CacheLayout layout{.plan = {.groups = {window_group(config.window, limits),
                                         whole_group(4, kCsaPageEntries, limits),
                                         whole_group(128, kHcaPageEntries, limits)},
                              .max_sequences = limits.max_sequences}};
  CachePlan& plan = layout.plan;
  const auto add_pool = [&](const CachePlan::Pool& pool) {
    plan.pools.push_back(pool);
    return static_cast<int>(plan.pools.size()) - 1;
  };
  const auto add_state = [&](const LayerSpec& spec, int64_t width) {
    plan.states.push_back(state_layout(spec, width));
    return static_cast<int>(plan.states.size()) - 1;
  };
  for (const LayerSpec& spec : layer_schedule(config)) {
    const int ratio = spec.ratio;
    CacheLayout::Layer layer{
        .window = add_pool(entry_pool(config, numerics, kWindowGroup, kWindowPageEntries))};
    if (ratio != 0) {
      const bool csa = ratio == 4;
      layer.entries = add_pool(entry_pool(config, numerics, csa ? kCsaGroup : kHcaGroup,
                                          csa ? kCsaPageEntries : kHcaPageEntries));
      layer.state = add_state(spec, config.head_dim);
      if (csa) {
        layer.keys = add_pool(key_pool(config, numerics));
        layer.index_state = add_state(spec, config.index_dim);
      }
    }
    layout.layers.push_back(layer);
  }
  return layout;
}

KvRate kv_rate(const ModelConfig& config, Numerics numerics) {
  const auto entry = static_cast<double>(entry_bytes(config, numerics));
  KvRate rate;
  for (const int ratio : config.ratios) {
    if (ratio == 0) continue;
    (ratio == 4 ? rate.csa_entries : rate.hca_entries) += entry / ratio;
    if (ratio == 4) rate.index_keys += static_cast<double>(key_bytes(config, numerics)) / ratio;
  }
  return rate;
}

SequenceBytes sequence_bytes(const ModelConfig& config, Numerics numerics) {
  const CachePlan plan = plan_cache(config, numerics, {.max_tokens = config.max_positions}).plan;
  SequenceBytes bytes;
  for (const CachePlan::Pool& pool : plan.pools) {
    if (pool.group == kWindowGroup)
      bytes.window += window_pages(config.window) * pool.page_items * item_bytes(pool.dtype);
  }
  for (const StateLayout& state : plan.states) bytes.states += state.floats() * kFloatBytes;
  return bytes;
}

int64_t checkpoint_bytes(const ModelConfig& config, Numerics numerics) {
  int64_t bytes = 0;
  for (const int ratio : config.ratios) {
    bytes += config.window * entry_bytes(config, numerics);
    if (ratio == 4) bytes += 2 * ratio * (config.head_dim + config.index_dim) * kFloatBytes;
  }
  return bytes;
}

}  // namespace dsv4
