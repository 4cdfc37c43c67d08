// What the cache of a model holds, computed before anything is allocated: ModelCache allocates this
// plan, `dsv4 plan` adds it up.
//
//   group 0  window  1 token an entry, the last W tokens of a sequence
//   group 1  CSA     4 tokens an entry; attention entries and indexer keys share page numbers
//   group 2  HCA     128 tokens an entry
//
// Official numerics stores packed rows (584 bytes an entry and 68 an indexer key at the released
// dims, spec dsv4.md 12.2, 12.3), exact numerics plain f32.

#pragma once

#include <vector>

#include "dsv4/cache/kv_cache.h"
#include "dsv4/formats/index_layout.h"
#include "dsv4/formats/kv_layout.h"
#include "dsv4/model/config.h"
#include "dsv4/ops/op.h"

namespace dsv4 {

struct CacheLimits {
  int64_t max_tokens = 0;  // per sequence, prompt and answer
  int max_sequences = 1;
  int64_t max_batch_tokens = 0;  // per step, over all sequences
  int64_t max_logits_rows = 0;   // per step; 0: one a sequence
};

inline constexpr int kWindowGroup = 0, kCsaGroup = 1, kHcaGroup = 2;
// Page sizes of other engines (spec 12.2), so that rows can be exchanged: 256 tokens a compressed
// page.
inline constexpr int kWindowPageEntries = 64, kCsaPageEntries = 64, kHcaPageEntries = 2;

KvLayout entry_layout(const ModelConfig& config);
IndexLayoutFp4 key_layout(const ModelConfig& config);

// The pages and states of all layers, and which of them are whose.
struct CacheLayout {
  struct Layer {  // indices of CachePlan::pools and states; -1: has none
    int window = -1, entries = -1, keys = -1, state = -1, index_state = -1;
  };
  CachePlan plan;
  std::vector<Layer> layers;
};
CacheLayout plan_cache(const ModelConfig& config, Numerics numerics, const CacheLimits& limits);

// Bytes that a token adds to the cache, summed over the layers: rows without the pages' rounding.
struct KvRate {
  double csa_entries = 0, index_keys = 0, hca_entries = 0;
  double total() const { return csa_entries + index_keys + hca_entries; }
};
KvRate kv_rate(const ModelConfig& config, Numerics numerics);

// What a sequence takes however short it is.
struct SequenceBytes {
  int64_t window = 0;  // pages for W tokens wherever they begin, all layers
  int64_t states = 0;  // newest tokens of the compressors
  int64_t total() const { return window + states; }
};
SequenceBytes sequence_bytes(const ModelConfig& config, Numerics numerics);

// What a prefix of a multiple of 128 tokens needs beside its entries to be continued: the window's
// rows and the overlap of the ratio-4 compressors, that is the previous block's first half of the
// columns, kv and gate (spec 5.3). The 128-token blocks are all closed.
int64_t checkpoint_bytes(const ModelConfig& config, Numerics numerics);

}  // namespace dsv4
