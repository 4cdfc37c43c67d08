// The layer schedule: what kind of layer stands where, and which caches that takes
// (docs/spec/dsv4.md 2).
//
//   SWA  window of raw tokens only
//   CSA  window + the top-k entries by the indexer's scores; an entry pools 2 r tokens, every r
//   HCA  window + all entries of r tokens
//
// Kinds and ratios r come from the config; layers of one kind and ratio share page tables.

#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "dsv4/formats/state_layout.h"
#include "dsv4/model/config.h"

namespace dsv4 {

const char* name(LayerKind kind);

// Compression ratios of the releases: of CSA and HCA layers (SWA: 0), and the kind that a ratio
// stands for; empty for ratios that no release has.
int released_ratio(LayerKind kind);
std::optional<LayerKind> kind_of_released_ratio(int ratio);

struct LayerSpec {
  LayerKind kind = LayerKind::kSwa;
  int ratio = 0;              // tokens per compressed entry; 0: none
  bool hash_routing = false;  // experts from tid2eid instead of the learned router
  int group = 0;              // cache_groups(): that of its compressed entries, 0 where none
  bool operator==(const LayerSpec&) const = default;
};

std::vector<LayerSpec> layer_schedule(const ModelConfig& config);

// Caches that grow at one rate and so share page tables: group kWindowGroup holds the window's keys
// of all layers, every further one the entries of the layers of one kind and ratio.
struct CacheGroupSpec {
  std::string name;         // "window", "CSA", "HCA"; with the ratio where a kind has several
  int ratio = 1;            // tokens per entry
  int page_entries = 0;     // entries of a page
  int64_t keep_tokens = 0;  // entries of the newest so many tokens are kept; 0: all
  bool has_index = false;   // entries have indexer keys, and a query attends to its top k
};
inline constexpr int kWindowGroup = 0;

std::vector<CacheGroupSpec> cache_groups(const ModelConfig& config);

// Layout of a compressor with entries of `width` in a layer with compression.
StateLayout state_layout(const LayerSpec& layer, int64_t width);

// On one line, each count before what it repeats: "2 x SWA+hash, CSA+hash, 20 x (HCA, CSA)".
std::string schedule_text(const std::vector<LayerSpec>& layers);

// Cache widths do not fit every config in packed form: throws kUnsupported naming the dimension
// when the official numerics cannot run this config.
void check_official_numerics(const ModelConfig& config);

}  // namespace dsv4
