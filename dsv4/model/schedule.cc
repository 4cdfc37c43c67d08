#include "dsv4/model/schedule.h"

#include <algorithm>

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

std::vector<LayerSpec> layer_schedule(const ModelConfig& config) {
  std::vector<LayerSpec> layers;
  for (size_t l = 0; l < config.ratios.size(); ++l) {
    const int ratio = config.ratios[l];
    const LayerKind kind = ratio == 0   ? LayerKind::kSwa
                           : ratio == 4 ? LayerKind::kCsa
                                        : LayerKind::kHca;
    layers.push_back({kind, ratio, config.hash_layers[l]});
  }
  return layers;
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
         "official numerics quantises keys in groups of {}, but head_dim - qk_rope_head_dim = {}; "
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
