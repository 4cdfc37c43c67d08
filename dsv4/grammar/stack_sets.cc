#include "dsv4/grammar/stack_sets.h"

#include <algorithm>

namespace dsv4 {
namespace {

constexpr size_t kMapNode = 48;  // what a map's node has besides its value

}  // namespace

StackSets::StackSets(std::function<void(size_t)> take, std::function<void()> work)
    : take_(std::move(take)), work_(std::move(work)) {
  intern({{kEnd, -1}});
}

StackSets::Id StackSets::intern(std::vector<Frame> frames) {
  if (const auto known = ids_.find(frames); known != ids_.end()) return known->second;
  take_(kMapNode + sizeof(std::vector<Frame>) + frames.size() * sizeof(Frame) + 16);
  const auto id = static_cast<Id>(sets_.size());
  sets_.push_back(&ids_.emplace(std::move(frames), id).first->first);
  return id;
}

StackSets::Id StackSets::of(std::vector<Frame> frames) {
  std::sort(frames.begin(), frames.end());
  frames.erase(std::unique(frames.begin(), frames.end()), frames.end());
  std::vector<Frame> merged;
  for (const Frame& frame : frames) {
    if (!merged.empty() && merged.back().node == frame.node) {
      merged.back().below = either(merged.back().below, frame.below);
    } else {
      merged.push_back(frame);
    }
  }
  return intern(std::move(merged));
}

// Stacks may be as deep as a text is long, so the pairs below wait on a stack of their own.
StackSets::Id StackSets::either(Id a, Id b) {
  const auto key_of = [](Id x, Id y) { return std::pair(std::min(x, y), std::max(x, y)); };
  const auto known = [&](Id x, Id y) -> Id {
    if (x == y) return x;
    const auto found = either_.find(key_of(x, y));
    return found == either_.end() ? -1 : found->second;
  };
  if (a == b) return a;
  std::vector<std::pair<Id, Id>> todo = {key_of(a, b)};
  while (!todo.empty()) {
    const auto [x, y] = todo.back();
    if (known(x, y) >= 0) {
      todo.pop_back();
      continue;
    }
    const std::vector<Frame>&left = frames(x), &right = frames(y);
    std::vector<Frame> merged;
    bool waits = false;
    for (size_t i = 0, j = 0; i < left.size() || j < right.size();) {
      work_();
      const bool from_left =
          j == right.size() || (i < left.size() && left[i].node <= right[j].node);
      const bool from_right =
          i == left.size() || (j < right.size() && right[j].node <= left[i].node);
      Frame frame = from_left ? left[i] : right[j];
      if (from_left && from_right && left[i].below != right[j].below) {
        frame.below = known(left[i].below, right[j].below);
        if (frame.below < 0) {
          todo.push_back(key_of(left[i].below, right[j].below));
          waits = true;
        }
      }
      merged.push_back(frame);
      i += from_left, j += from_right;
    }
    if (waits) continue;
    take_(kMapNode + sizeof(std::pair<std::pair<Id, Id>, Id>));
    const Id id = intern(std::move(merged));
    either_[{x, y}] = id;
    todo.pop_back();
  }
  return known(a, b);
}

}  // namespace dsv4
