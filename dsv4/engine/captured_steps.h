// The sizes of steps that a device captures as graphs: decode steps, padded so that few graphs
// serve all of them.
//
//   sequences   a power of two, or as many as there may be
//   tokens      the same number in each sequence: one, or one and the drafts to verify
//   entries     a power of two of visible ones in each cache group, or as many as a sequence has
//               at most
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

class CapturedSteps {
 public:
  CapturedSteps(std::span<const CacheGroupSpec> groups, int64_t index_topk,
                const CacheLimits& limits)
      : groups_(groups), index_topk_(index_topk), limits_(limits) {}

  // What a step of these extents is padded to; nothing if such a step is not captured.
  // run_tokens: of its longest run
  std::optional<StepExtents> padded(const StepExtents& exact, int64_t run_tokens) const;
  // None of padded() has longer lists, or wants more memory, than the largest of these.
  std::vector<StepExtents> largest() const;

 private:
  StepExtents::Group padded(const CacheGroupSpec& group, int64_t visible, int64_t runs,
                            int64_t run_tokens) const;
  int64_t most_tokens() const;

  std::span<const CacheGroupSpec> groups_;
  int64_t index_topk_;
  CacheLimits limits_;
};

}  // namespace dsv4
