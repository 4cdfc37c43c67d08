// Sizes of everything that the cache of a model owns, computed before anything is allocated.
// ModelCache allocates this plan; `dsv4 plan` adds it up.
//
//   window group   1 token an entry, the last W tokens of a sequence
//   CSA group      r tokens an entry; attention entries and indexer keys share page numbers
//   HCA group      r tokens an entry
//
// The groups and their r follow from the config (model/schedule.h).
// Official numerics stores packed rows (584 bytes an entry and 68 an indexer key at the released
// dims, docs/spec/dsv4.md 12.2, 12.3), exact numerics plain f32.

#pragma once

#include <span>
#include <string>
#include <vector>

#include "dsv4/cache/pools.h"
#include "dsv4/formats/index_layout.h"
#include "dsv4/formats/kv_layout.h"
#include "dsv4/model/schedule.h"
#include "dsv4/ops/op.h"

namespace dsv4 {

struct CacheLimits {
  int64_t max_tokens = 0;  // per sequence, prompt and answer
  int max_sequences = 1;
  int64_t max_batch_tokens = 0;  // per step, over all sequences
  int64_t max_logits_rows = 0;   // per step; 0: one a sequence
  int64_t cache_tokens = 0;      // of all sequences together; 0: max_tokens for each of them
  int64_t max_rollback = 0;      // tokens that a sequence can be taken back
  int64_t max_drafts = 0;        // tokens of a step that may not be committed (speculation)
  int checkpoints = 0;           // of prefixes that later sequences continue (prefix_cache.h)
  // Its blocks have rows too (model/mtp.h, model/dspark.h).
  DrafterKind drafter = DrafterKind::kNone;
  bool draft_head = false;  // guesses read a copy of the head (draft_head.h)

  int64_t logits_rows() const { return max_logits_rows > 0 ? max_logits_rows : max_sequences; }
};

KvLayout entry_layout(const ModelConfig& config);
IndexLayoutFp4 key_layout(const ModelConfig& config);

// Bytes of a token's streams, in the dtype of activations.
int64_t stream_bytes(const ModelConfig& config, Numerics numerics);

// The pools and states of all layers, the drafter's last, and for each which of them are its own.
// DSpark's pools also have pages of each sequence's own, for the block that it guesses at present.
struct CacheLayout {
  struct Layer {  // indices of CachePlan::pools and states; -1: has none
    int window = -1, entries = -1, keys = -1, state = -1, index_state = -1;
  };
  CachePlan plan;
  std::vector<Layer> layers;
};
CacheLayout plan_cache(const ModelConfig& config, Numerics numerics, const CacheLimits& limits);

// Checkpoints are at multiples of these tokens: every block of a compressor is closed there, and
// the pages of the groups that drop old entries are full. 128 for the released models.
int64_t checkpoint_step(std::span<const CacheGroup> groups);

// Bytes that a token adds to the cache, summed over the layers: rows without the pages' rounding.
struct KvRate {
  struct Group {
    std::string name;  // CacheGroupSpec::name
    double entries = 0, index_keys = 0;
  };
  std::vector<Group> groups;  // those that keep all entries
  double index_keys() const;
  double total() const;
};
KvRate kv_rate(const ModelConfig& config, Numerics numerics);

// Bytes of a sequence that do not depend on its length.
struct SequenceBytes {
  int64_t window = 0;  // pages for W tokens wherever they begin, all layers
  int64_t states = 0;  // newest tokens of the compressors; streams of the newest for MTP
  int64_t total() const { return window + states; }
};
SequenceBytes sequence_bytes(const ModelConfig& config, Numerics numerics,
                             DrafterKind drafter = DrafterKind::kNone);

// A prefix that ends on a block boundary of every group is continued from its entries and these
// bytes: the window's rows and, for compressors with overlap, the first half of the columns of the
// last block, kv and gate (docs/spec/dsv4.md 5.3); with a drafter its rows, and for MTP the streams
// of the last token.
int64_t checkpoint_bytes(const ModelConfig& config, Numerics numerics,
                         DrafterKind drafter = DrafterKind::kNone);

}  // namespace dsv4
