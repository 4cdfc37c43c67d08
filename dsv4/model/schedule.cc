#include "dsv4/model/schedule.h"

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

void check_official_numerics(const ModelConfig& config) {
  const int64_t nope = config.head_dim - config.rope_dim;
  if (nope % KvLayout::kGroup != 0) {
    fail(ErrorCode::kUnsupported,
         "official numerics quantises keys in groups of {}, but head_dim - qk_rope_head_dim = {}; "
         "use --numerics exact",
         KvLayout::kGroup, nope);
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
