// The sizes of steps that a device captures as graphs: decode steps, padded so that few graphs
// serve all of them.
//
//   sequences   1, 2, 3, 4, 6, 8, 12, 16, 24, .. (powers of two and 3/2 of them), or as many as
//               there may be
//   tokens      a multiple of the sequences, up to kMaxRunTokens of each: one, or one and the
//               drafts to verify, on average over the sequences
//   entries     a power of two of visible ones in each cache group, or as many as a sequence has
//               at most
//
// A row of padding costs as much as a row of a sequence: it goes through the router and reads
// experts. So few are added: none to a step of one of these numbers of sequences that all have
// equally many tokens.
//
// The runner pads steps to these sizes, and the plan of the workspace takes the largest of them.

#pragma once

#include <optional>
#include <span>
#include <vector>

#include "dsv4/engine/cache_plan.h"
#include "dsv4/model/model.h"
#include "dsv4/model/step.h"

namespace dsv4 {

// Most tokens of a sequence in a captured step.
inline constexpr int64_t kMaxRunTokens = 8;

// The least number of sequences, of those above, that is not below n.
int64_t captured_size(int64_t n);

class CapturedSteps {
 public:
  CapturedSteps(std::span<const CacheGroupSpec> groups, int64_t index_topk,
                const CacheLimits& limits)
      : groups_(groups), index_topk_(index_topk), limits_(limits) {}

  // What a step of these extents is padded to; nothing if such a step is not captured.
  // run_tokens: of its longest run
  std::optional<StepExtents> padded(const StepExtents& exact, int64_t run_tokens) const;
  // What a pass of MTP over so many sequences is padded to; a block of DSpark has as many runs.
  StepExtents draft(int64_t runs) const;
  // None of padded() has longer lists, or wants more memory, than the largest of these.
  std::vector<StepExtents> largest() const;

 private:
  StepExtents extents(int64_t runs, int64_t tokens, std::span<const int64_t> visible) const;
  int64_t most_tokens() const;

  std::span<const CacheGroupSpec> groups_;
  int64_t index_topk_;
  CacheLimits limits_;
};

}  // namespace dsv4
