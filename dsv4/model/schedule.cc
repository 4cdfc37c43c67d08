#include "dsv4/model/schedule.h"

#include <algorithm>
#include <bit>
#include <set>
#include <utility>

#include "dsv4/base/error.h"
#include "dsv4/formats/index_layout.h"
#include "dsv4/formats/kv_layout.h"

namespace dsv4 {

const char* name(LayerKind kind) {
  switch (kind) {
    case LayerKind::kSwa:
      return "SWA";
    case LayerKind::kCsa:
      return "CSA";
    case LayerKind::kHca:
      return "HCA";
  }
  return "unknown";
}

int released_ratio(LayerKind kind) {
  switch (kind) {
    case LayerKind::kSwa:
      return 0;
    case LayerKind::kCsa:
      return 4;
    case LayerKind::kHca:
      return 128;
  }
  return 0;
}

std::optional<LayerKind> kind_of_released_ratio(int ratio) {
  for (const LayerKind kind : {LayerKind::kSwa, LayerKind::kCsa, LayerKind::kHca}) {
    if (ratio == released_ratio(kind)) return kind;
  }
  return {};
}

namespace {

// Page sizes of other engines (docs/spec/dsv4.md 12.2), so that rows can be exchanged.
constexpr int kWindowPageEntries = 64;
constexpr unsigned kPageTokens = 256;  // of a compressed page

int page_entries(int ratio) {
  const unsigned entries = kPageTokens / static_cast<unsigned>(ratio);
  return static_cast<int>(std::bit_floor(std::max(entries, 1u)));
}

// Kind and ratio of each group past the window's: CSA before HCA, short blocks before long ones.
std::vector<std::pair<LayerKind, int>> compressed_groups(const ModelConfig& config) {
  std::set<std::pair<LayerKind, int>> distinct;
  for (size_t l = 0; l < config.kinds.size(); ++l) {
    if (config.kinds[l] != LayerKind::kSwa) distinct.insert({config.kinds[l], config.ratios[l]});
  }
  return {distinct.begin(), distinct.end()};
}

}  // namespace

std::vector<LayerSpec> layer_schedule(const ModelConfig& config) {
  const auto groups = compressed_groups(config);
  std::vector<LayerSpec> layers;
  for (size_t l = 0; l < config.kinds.size(); ++l) {
    LayerSpec layer{config.kinds[l], config.ratios[l], config.hash_layers[l]};
    for (size_t g = 0; g < groups.size(); ++g) {
      if (groups[g] == std::pair(layer.kind, layer.ratio)) layer.group = static_cast<int>(g) + 1;
    }
    layers.push_back(layer);
  }
  return layers;
}

std::vector<CacheGroupSpec> cache_groups(const ModelConfig& config) {
  std::vector<CacheGroupSpec> groups = {
      {.name = "window", .page_entries = kWindowPageEntries, .keep_tokens = config.window}};
  const auto compressed = compressed_groups(config);
  for (const auto& [kind, ratio] : compressed) {
    const bool alone = std::count_if(compressed.begin(), compressed.end(),
                                     [kind = kind](const auto& g) { return g.first == kind; }) == 1;
    groups.push_back({.name = alone ? name(kind) : fmt::format("{}{}", name(kind), ratio),
                      .ratio = ratio,
                      .page_entries = page_entries(ratio),
                      .has_index = kind == LayerKind::kCsa});
  }
  return groups;
}

StateLayout state_layout(const LayerSpec& layer, int64_t width) {
  return {.ratio = layer.ratio,
          .width = static_cast<int>(width),
          .overlap = layer.kind == LayerKind::kCsa};
}

std::string schedule_text(const std::vector<LayerSpec>& layers) {
  constexpr size_t kMaxPeriod = 4;
  const size_t n = layers.size();
  std::string text;
  for (size_t begin = 0; begin < n;) {
    // The period that covers most from here on; the shortest of equals.
    size_t period = 1, repeats = 1;
    for (size_t p = 1; p <= std::min(kMaxPeriod, n - begin); ++p) {
      size_t end = begin + p;
      while (end < n && layers[end] == layers[end - p]) ++end;
      const size_t times = (end - begin) / p;
      if (times > 1 && p * times > period * repeats) period = p, repeats = times;
    }
    std::string unit;
    for (size_t l = begin; l < begin + period; ++l)
      unit += fmt::format("{}{}{}", l > begin ? ", " : "", name(layers[l].kind),
                          layers[l].hash_routing ? "+hash" : "");
    if (period > 1) unit = "(" + unit + ")";
    if (!text.empty()) text += ", ";
    text += repeats > 1 ? fmt::format("{} x {}", repeats, unit) : unit;
    begin += period * repeats;
  }
  return text;
}

void check_official_numerics(const ModelConfig& config) {
  const int64_t nope = config.head_dim - config.rope_dim;
  if (nope % KvLayout{}.group() != 0) {
    fail(ErrorCode::kUnsupported,
         "official numerics quantizes keys in groups of {}, but head_dim - qk_rope_head_dim = {}; "
         "use --numerics exact",
         KvLayout{}.group(), nope);
  }
  for (const LayerSpec& layer : layer_schedule(config)) {
    if (layer.kind != LayerKind::kCsa) continue;
    if (config.index_dim % IndexLayoutFp4::kGroup != 0 || !is_pow2(config.index_dim)) {
      fail(ErrorCode::kUnsupported,
           "official numerics needs index_head_dim to be a power of two and a multiple of {}, got "
           "{}; use --numerics exact",
           IndexLayoutFp4::kGroup, config.index_dim);
    }
  }
}

}  // namespace dsv4
