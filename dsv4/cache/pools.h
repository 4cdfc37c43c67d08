// Memory of a cache on one device: pools of pages, and compressor states. page_tables.h knows which
// sequence holds which page.
//
//   pool    one tensor [pages, page_items] of a group: one layer's rows
//   state   one tensor [max_sequences, floats]: one compressor's newest tokens, a slot per sequence
//   streams one tensor [max_sequences, bytes], with a drafter: those of the sequence's newest token

#pragma once

#include <cstdint>
#include <vector>

#include "dsv4/cache/page_tables.h"
#include "dsv4/formats/state_layout.h"
#include "dsv4/tensor/buffer.h"

namespace dsv4 {

struct CachePlan {
  // A page: entries one after another, then their scales where these are apart, then padding.
  struct Pool {
    int group = 0;
    DType dtype = DType::kU8;
    int64_t page_items = 0;
    int64_t entry_bytes = 0, scale_bytes = 0;  // of one entry; 0: no scales apart
    // Each sequence's slot has so many, after the pages of the group: for what no table lists.
    int64_t own_pages = 0;
  };
  std::vector<CacheGroup> groups;
  std::vector<Pool> pools;
  std::vector<StateLayout> states;
  int max_sequences = 1;
  int64_t streams_bytes = 0;  // of a sequence; 0: no drafter wants them

  int64_t pages(const Pool& pool) const;
  int64_t bytes() const;  // of everything that CachePools will own
};

class CachePools {
 public:
  CachePools(const CachePlan& plan, Memory& memory);

  const TensorView& pool(int index) const { return pools_[static_cast<size_t>(index)].view(); }
  const TensorView& state(int index) const { return states_[static_cast<size_t>(index)].view(); }
  const TensorView& streams() const { return streams_.view(); }

 private:
  std::vector<Buffer> pools_;   // [pages, page_items] each
  std::vector<Buffer> states_;  // [max_sequences, floats] f32 each
  Buffer streams_;              // [max_sequences, streams_bytes] U8
};

}  // namespace dsv4
