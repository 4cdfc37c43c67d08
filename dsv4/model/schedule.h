// The layer schedule: what kind of layer stands where (spec dsv4.md 2).
//
//   SWA  window of raw tokens only                         ratio 0
//   CSA  window + the indexer's top-k entries of 4 tokens  ratio 4
//   HCA  window + all entries of 128 tokens                ratio 128

#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "dsv4/formats/state_layout.h"
#include "dsv4/model/config.h"

namespace dsv4 {

enum class LayerKind : uint8_t { kSwa, kCsa, kHca };

const char* name(LayerKind kind);

struct LayerSpec {
  LayerKind kind = LayerKind::kSwa;
  int ratio = 0;              // tokens per compressed entry; 0: none
  bool hash_routing = false;  // experts from tid2eid instead of the learned router
  bool operator==(const LayerSpec&) const = default;
};

std::vector<LayerSpec> layer_schedule(const ModelConfig& config);

// Of a compressor with entries of `width` in a layer with compression.
StateLayout state_layout(const LayerSpec& layer, int64_t width);

// On one line, with what repeats in front of it: "2 x SWA+hash, CSA+hash, 20 x (HCA, CSA)".
std::string schedule_text(const std::vector<LayerSpec>& layers);

// Cache widths do not fit every config in packed form: throws kUnsupported naming the dimension
// when the official numerics cannot run this config.
void check_official_numerics(const ModelConfig& config);

}  // namespace dsv4
