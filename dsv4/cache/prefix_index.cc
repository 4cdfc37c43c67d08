#include "dsv4/cache/prefix_index.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <functional>
#include <utility>

#include "dsv4/base/error.h"

namespace dsv4 {
namespace {

constexpr size_t kRootSeed = 0x5bd1e995u;

size_t hash_of(int32_t parent, std::span<const int32_t> ids) {
  return XXH3_64bits_withSeed(ids.data(), ids.size_bytes(), static_cast<uint64_t>(parent + 1));
}

size_t hash_of(std::string_view salt) {
  return std::hash<std::string_view>{}(salt) ^ kRootSeed;
}

}  // namespace

PrefixIndex::PrefixIndex(int64_t step) : step_(step) {
  DSV4_CHECK(step >= 1, "steps of {} tokens", step);
}

std::optional<int32_t> PrefixIndex::root(std::string_view salt) const {
  const auto [begin, end] = by_hash_.equal_range(hash_of(salt));
  for (auto at = begin; at != end; ++at) {
    const Node& node = nodes_[static_cast<size_t>(at->second)];
    if (node.parent < 0 && node.salt == salt) return at->second;
  }
  return std::nullopt;
}

std::optional<int32_t> PrefixIndex::child(int32_t parent, std::span<const int32_t> ids) const {
  const auto [begin, end] = by_hash_.equal_range(hash_of(parent, ids));
  for (auto at = begin; at != end; ++at) {
    const Node& node = nodes_[static_cast<size_t>(at->second)];
    if (node.parent == parent && std::equal(ids.begin(), ids.end(), node.ids.begin()))
      return at->second;
  }
  return std::nullopt;
}

PrefixIndex::Match PrefixIndex::find(std::string_view salt, std::span<const int32_t> ids) const {
  Match best;
  std::optional<int32_t> node = root(salt);
  const auto step = static_cast<size_t>(step_);
  for (size_t end = step; node && end <= ids.size(); end += step) {
    node = child(*node, ids.subspan(end - step, step));
    if (!node) break;
    best.common = static_cast<int64_t>(end);
    const int32_t checkpoint = nodes_[static_cast<size_t>(*node)].checkpoint;
    if (checkpoint >= 0) best.checkpoint = checkpoint, best.tokens = best.common;
  }
  return best;
}

int32_t PrefixIndex::add(Node node, size_t hash) {
  int32_t place = static_cast<int32_t>(nodes_.size());
  if (free_.empty()) {
    nodes_.push_back(std::move(node));
  } else {
    place = free_.back();
    free_.pop_back();
    nodes_[static_cast<size_t>(place)] = std::move(node);
  }
  by_hash_.emplace(hash, place);
  return place;
}

std::optional<int> PrefixIndex::insert(std::string_view salt, std::span<const int32_t> ids,
                                       int checkpoint) {
  const auto step = static_cast<size_t>(step_);
  DSV4_CHECK(!ids.empty() && ids.size() % step == 0, "a checkpoint after {} tokens, in steps of {}",
             ids.size(), step);
  DSV4_CHECK(checkpoint >= 0 && !node_of_checkpoint_.contains(checkpoint),
             "checkpoint {} is negative or in use", checkpoint);
  std::optional<int32_t> node = root(salt);
  if (!node) node = add({.salt = std::string(salt)}, hash_of(salt));
  for (size_t end = step; end <= ids.size(); end += step) {
    const std::span<const int32_t> own = ids.subspan(end - step, step);
    std::optional<int32_t> next = child(*node, own);
    if (!next) {
      next = add({.parent = *node, .ids = {own.begin(), own.end()}}, hash_of(*node, own));
      ++nodes_[static_cast<size_t>(*node)].children;
    }
    node = next;
  }
  int32_t& there = nodes_[static_cast<size_t>(*node)].checkpoint;
  if (there >= 0) return there;
  there = checkpoint;
  node_of_checkpoint_.emplace(checkpoint, *node);
  return std::nullopt;
}

void PrefixIndex::remove_unused(int32_t place) {
  while (place >= 0) {
    Node& node = nodes_[static_cast<size_t>(place)];
    if (node.checkpoint >= 0 || node.children > 0) return;
    const size_t hash = node.parent < 0 ? hash_of(node.salt) : hash_of(node.parent, node.ids);
    const auto [begin, end] = by_hash_.equal_range(hash);
    by_hash_.erase(
        std::find_if(begin, end, [&](const auto& item) { return item.second == place; }));
    const int32_t parent = node.parent;
    node = {};
    free_.push_back(place);
    if (parent >= 0) --nodes_[static_cast<size_t>(parent)].children;
    place = parent;
  }
}

void PrefixIndex::erase(int checkpoint) {
  const auto found = node_of_checkpoint_.find(checkpoint);
  DSV4_CHECK(found != node_of_checkpoint_.end(), "checkpoint {} is not in the index", checkpoint);
  const int32_t place = found->second;
  node_of_checkpoint_.erase(found);
  nodes_[static_cast<size_t>(place)].checkpoint = -1;
  remove_unused(place);
}

}  // namespace dsv4
