#include "dsv4/engine/cache_plan.h"

#include <algorithm>
#include <numeric>

#include "dsv4/base/bits.h"
#include "dsv4/model/schedule.h"

namespace dsv4 {
namespace {

constexpr auto kFloatBytes = static_cast<int64_t>(sizeof(float));

CachePlan::Pool entry_pool(const ModelConfig& c, Numerics numerics, int group, int page_entries) {
  const KvLayout layout = entry_layout(c);
  if (numerics == Numerics::kExact)
    return {group, DType::kF32, int64_t{page_entries} * layout.width(),
            kFloatBytes * layout.width()};
  return {group, DType::kU8, layout.page_bytes(page_entries), layout.entry_bytes(),
          layout.scale_bytes()};
}

CachePlan::Pool key_pool(const ModelConfig& c, Numerics numerics, int group, int page_entries) {
  const IndexLayoutFp4 layout = key_layout(c);
  if (numerics == Numerics::kExact)
    return {group, DType::kF32, int64_t{page_entries} * layout.width, kFloatBytes * layout.width};
  return {group, DType::kU8, layout.page_bytes(page_entries), layout.code_bytes(),
          layout.scale_bytes()};
}

// Pages that a sequence holds of a group that drops old entries: those of keep_tokens - 1 tokens,
// and one more at each end, because pages do not begin where the kept tokens begin.
int64_t sliding_pages(const CacheGroupSpec& group, int64_t max_rollback) {
  return ceil_div(group.keep_tokens + max_rollback - 1, group.page_entries) + 2;
}

// Tokens that stay beside those that the next one sees. A block of DSpark sees W tokens before it,
// one more than the next token does.
int64_t kept_longer(const CacheLimits& limits) {
  return limits.max_rollback + (limits.drafter == DrafterKind::kDspark ? 1 : 0);
}

// A group that drops old entries must also hold the tokens of a step until they are dropped, and
// what checkpoints keep of it; groups that drop nothing share their pages with checkpoints.
CacheGroup group_plan(const CacheGroupSpec& spec, const CacheLimits& limits) {
  const int64_t longest = ceil_div(limits.max_tokens / spec.ratio, spec.page_entries);
  const int64_t shared = ceil_div(limits.cache_tokens / spec.ratio, spec.page_entries);
  const int64_t all = limits.max_sequences * longest;
  const int64_t whole = limits.cache_tokens == 0 ? all : std::clamp(shared, longest, all);
  const int64_t sliding = limits.max_sequences * sliding_pages(spec, kept_longer(limits)) +
                          ceil_div(limits.max_batch_tokens, spec.page_entries);
  const int64_t kept =
      limits.checkpoints * ceil_div(spec.keep_tokens + kept_longer(limits) - 1, spec.page_entries);
  return {.tokens_per_entry = spec.ratio,
          .page_entries = spec.page_entries,
          .num_pages = spec.keep_tokens > 0 ? std::min(sliding, all) + kept : whole,
          .keep_tokens = spec.keep_tokens > 0 ? spec.keep_tokens + kept_longer(limits) : 0};
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

int64_t stream_bytes(const ModelConfig& c, Numerics numerics) {
  const DType act = numerics == Numerics::kOfficial ? DType::kBF16 : DType::kF32;
  return c.hc_mult * c.hidden_size * item_bytes(act);
}

KvLayout entry_layout(const ModelConfig& c) {
  return {.nope = static_cast<int>(c.head_dim - c.rope_dim), .rope = static_cast<int>(c.rope_dim)};
}

IndexLayoutFp4 key_layout(const ModelConfig& c) {
  return {.width = static_cast<int>(c.index_dim)};
}

double KvRate::index_keys() const {
  double sum = 0;
  for (const Group& group : groups) sum += group.index_keys;
  return sum;
}

double KvRate::total() const {
  double sum = 0;
  for (const Group& group : groups) sum += group.entries + group.index_keys;
  return sum;
}

int64_t checkpoint_step(std::span<const CacheGroup> groups) {
  int64_t step = 1;
  for (const CacheGroup& group : groups)
    step = std::lcm(
        step, int64_t{group.tokens_per_entry} * (group.keep_tokens > 0 ? group.page_entries : 1));
  return step;
}

CacheLayout plan_cache(const ModelConfig& config, Numerics numerics, const CacheLimits& limits) {
  CacheLayout layout{.plan = {.max_sequences = limits.max_sequences}};
  CachePlan& plan = layout.plan;
  for (const CacheGroupSpec& spec : cache_groups(config))
    plan.groups.push_back(group_plan(spec, limits));
  const auto page_entries = [&](int group) {
    return plan.groups[static_cast<size_t>(group)].page_entries;
  };
  const auto add_pool = [&](const CachePlan::Pool& pool) {
    plan.pools.push_back(pool);
    return static_cast<int>(plan.pools.size()) - 1;
  };
  // A checkpoint is made when a chunk has run that goes on after it, by less than a step.
  const auto checkpoint_rows = [&](const StateLayout& state) -> int64_t {
    if (limits.checkpoints == 0 || !state.overlap) return 0;
    return std::max<int64_t>(0, checkpoint_step(plan.groups) - 1 - state.ratio);
  };
  const auto add_state = [&](const LayerSpec& spec, int64_t width) {
    StateLayout state = state_layout(spec, width);
    state.spare = static_cast<int>(
        std::max({limits.max_rollback, limits.max_drafts, checkpoint_rows(state)}));
    plan.states.push_back(state);
    return static_cast<int>(plan.states.size()) - 1;
  };
  for (const LayerSpec& spec : layer_schedule(config)) {
    const int group = spec.group, entries = page_entries(group);
    CacheLayout::Layer layer{
        .window = add_pool(entry_pool(config, numerics, kWindowGroup, page_entries(kWindowGroup)))};
    if (spec.kind != LayerKind::kSwa) {
      layer.entries = add_pool(entry_pool(config, numerics, group, entries));
      layer.state = add_state(spec, config.head_dim);
    }
    if (spec.kind == LayerKind::kCsa) {
      layer.keys = add_pool(key_pool(config, numerics, group, entries));
      layer.index_state = add_state(spec, config.index_dim);
    }
    layout.layers.push_back(layer);
  }
  for (int64_t block = 0; block < drafter_blocks(config, limits.drafter); ++block) {
    CachePlan::Pool pool = entry_pool(config, numerics, kWindowGroup, page_entries(kWindowGroup));
    if (limits.drafter == DrafterKind::kDspark)
      pool.own_pages = ceil_div(config.dspark.block_size, page_entries(kWindowGroup));
    layout.layers.push_back({.window = add_pool(pool)});
  }
  if (limits.drafter == DrafterKind::kMtp) plan.streams_bytes = stream_bytes(config, numerics);
  return layout;
}

KvRate kv_rate(const ModelConfig& config, Numerics numerics) {
  const auto entry = static_cast<double>(entry_bytes(config, numerics)),
             key = static_cast<double>(key_bytes(config, numerics));
  const std::vector<LayerSpec> schedule = layer_schedule(config);
  const std::vector<CacheGroupSpec> groups = cache_groups(config);
  KvRate rate;
  for (size_t g = kWindowGroup + 1; g < groups.size(); ++g) {
    const auto layers = static_cast<double>(
        std::count_if(schedule.begin(), schedule.end(),
                      [&](const LayerSpec& layer) { return layer.group == static_cast<int>(g); }));
    rate.groups.push_back({.name = groups[g].name,
                           .entries = layers * entry / groups[g].ratio,
                           .index_keys = groups[g].has_index ? layers * key / groups[g].ratio : 0});
  }
  return rate;
}

SequenceBytes sequence_bytes(const ModelConfig& config, Numerics numerics, DrafterKind drafter) {
  const CacheLimits limits{.max_tokens = config.max_positions, .drafter = drafter};
  const CachePlan plan = plan_cache(config, numerics, limits).plan;
  const CacheGroupSpec window = cache_groups(config)[kWindowGroup];
  SequenceBytes bytes;
  for (const CachePlan::Pool& pool : plan.pools) {
    if (pool.group == kWindowGroup)
      bytes.window += (sliding_pages(window, kept_longer(limits)) + pool.own_pages) *
                      pool.page_items * item_bytes(pool.dtype);
  }
  for (const StateLayout& state : plan.states) bytes.states += state.floats() * kFloatBytes;
  bytes.states += plan.streams_bytes;
  return bytes;
}

int64_t checkpoint_bytes(const ModelConfig& config, Numerics numerics, DrafterKind drafter) {
  int64_t bytes = drafter_blocks(config, drafter) * config.window * entry_bytes(config, numerics);
  if (drafter == DrafterKind::kMtp) bytes += stream_bytes(config, numerics);
  for (const LayerSpec& spec : layer_schedule(config)) {
    bytes += config.window * entry_bytes(config, numerics);
    if (spec.kind == LayerKind::kCsa)
      bytes += 2 * spec.ratio * (config.head_dim + config.index_dim) * kFloatBytes;
  }
  return bytes;
}

}  // namespace dsv4
