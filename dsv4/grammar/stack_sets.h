// The stacks that a run of a grammar can have, as sets that are stored once: a set is what may be
// on top, and below each of these another set. Sets with the same top are one, so that a set is the
// smallest deterministic automaton of its stacks, and equal sets have equal numbers. n readings of
// a text whose stacks look alike cost one set instead of n stacks.
//
//   set = {(return node, set below), ...}        kEnd: the grammar ends here

#pragma once

#include <compare>
#include <cstdint>
#include <functional>
#include <map>
#include <vector>

#include "dsv4/grammar/automaton.h"

namespace dsv4 {

class StackSets {
 public:
  using Id = int32_t;
  static constexpr NodeId kEnd = -1;
  struct Frame {
    NodeId node;  // where the rule continues that called
    Id below;     // -1 for kEnd
    friend auto operator<=>(const Frame&, const Frame&) = default;
  };

  // `take(bytes)` is called before memory is used and may throw; `work()` for each step.
  StackSets(std::function<void(size_t)> take, std::function<void()> work);

  Id empty() const { return 0; }  // the one stack with nothing on it
  const std::vector<Frame>& frames(Id set) const { return *sets_[static_cast<size_t>(set)]; }
  // Frames in any order, some perhaps with the same node.
  Id of(std::vector<Frame> frames);
  Id either(Id a, Id b);

 private:
  Id intern(std::vector<Frame> frames);  // sorted, each node once

  const std::function<void(size_t)> take_;
  const std::function<void()> work_;
  std::map<std::vector<Frame>, Id> ids_;
  std::vector<const std::vector<Frame>*> sets_;  // keys of ids_
  std::map<std::pair<Id, Id>, Id> either_;
};

}  // namespace dsv4
