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

void PrefixIndex::publish(BlockEvents events, const Digest& fingerprint) {
  DSV4_CHECK(num_nodes() == 0, "an index of {} nodes begins to publish", num_nodes());
  ledger_ = BlockLedger(CacheTier::kEngine, step_, std::move(events));
  fingerprint_ = fingerprint;
}

std::vector<uint64_t> PrefixIndex::blocks(const Digest& fingerprint) const {
  std::vector<uint64_t> blocks;
  const std::optional<int32_t> start = root("");
  if (!start) return blocks;
  // Children are found by their parent's place only, so each node walks up to the root.
  for (const Node& node : nodes_) {
    if (node.parent < 0) continue;
    std::vector<const Node*> path = {&node};
    while (path.back()->parent >= 0 && path.back()->parent != *start)
      path.push_back(&nodes_[static_cast<size_t>(path.back()->parent)]);
    if (path.back()->parent != *start) continue;
    PrefixKey key = root_key(fingerprint, salt_key(""));
    for (size_t i = path.size(); i-- > 0;) key = next_key(key, path[i]->ids);
    blocks.push_back(block_hash(key));
  }
  return blocks;
}

// nodes: consecutive ones of a text, which are new.
void PrefixIndex::publish_stored(std::span<const int32_t> nodes) {
  if (nodes.empty() || !ledger_.publishes()) return;
  const auto node_at = [this](int32_t place) -> Node& {
    return nodes_[static_cast<size_t>(place)];
  };
  const Node& before = node_at(node_at(nodes.front()).parent);
  const bool begins = before.parent < 0;
  PrefixKey key = begins ? root_key(fingerprint_, salt_key("")) : before.key;
  const auto parent = begins ? std::nullopt : std::optional(block_hash(key));
  std::vector<uint64_t> blocks;
  std::vector<int32_t> ids;
  for (const int32_t place : nodes) {
    Node& node = node_at(place);
    node.key = key = next_key(key, node.ids);
    blocks.push_back(block_hash(key));
    ids.insert(ids.end(), node.ids.begin(), node.ids.end());
  }
  ledger_.add(parent, blocks, ids);
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
  std::vector<int32_t> added;
  for (size_t end = step; end <= ids.size(); end += step) {
    const std::span<const int32_t> own = ids.subspan(end - step, step);
    std::optional<int32_t> next = child(*node, own);
    if (!next) {
      next = add({.parent = *node, .ids = {own.begin(), own.end()}}, hash_of(*node, own));
      ++nodes_[static_cast<size_t>(*node)].children;
      added.push_back(*next);
    }
    node = next;
  }
  if (salt.empty()) publish_stored(added);
  int32_t& there = nodes_[static_cast<size_t>(*node)].checkpoint;
  if (there >= 0) return there;
  there = checkpoint;
  node_of_checkpoint_.emplace(checkpoint, *node);
  return std::nullopt;
}

void PrefixIndex::remove_unused(int32_t place) {
  std::vector<uint64_t> removed;
  while (place >= 0) {
    Node& node = nodes_[static_cast<size_t>(place)];
    if (node.checkpoint >= 0 || node.children > 0) break;
    if (node.key != PrefixKey{}) removed.push_back(block_hash(node.key));
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
  ledger_.remove(removed);
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
