// Which prefixes of texts have a checkpoint: sequences of token ids, in steps of a fixed number of
// tokens, found by walking from the start (docs/spec/serving.md 5.3).
//
//   node         one step of ids after its parent; the root of a salt stands before the first step
//   checkpoint   a number of the caller's at a node: the state from which the prefix is continued
//
// A node is found by a hash of its parent and its ids, and then compares the ids: a collision of
// hashes is a miss, never another text. Texts of different salts share nothing. Bookkeeping on the
// host; what a checkpoint is made of belongs to the caller.

#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "dsv4/cache/block_events.h"

namespace dsv4 {

class PrefixIndex {
 public:
  explicit PrefixIndex(int64_t step);  // tokens, at least 1

  // From now on, publishes every step that leads to a checkpoint, with the keys of this
  // fingerprint. The index must be empty.
  void publish(BlockEvents events, const Digest& fingerprint);

  int64_t step() const { return step_; }
  // The blocks of texts without a salt that lead to a checkpoint, computed anew from their ids.
  std::vector<uint64_t> blocks(const Digest& fingerprint) const;
  size_t num_nodes() const { return nodes_.size() - free_.size(); }

  struct Match {
    int checkpoint = -1;  // -1: none
    int64_t tokens = 0;   // of its prefix
    int64_t common = 0;   // that `ids` shares with some text that goes on to a checkpoint
  };
  // The longest prefix of `ids` that has a checkpoint.
  Match find(std::string_view salt, std::span<const int32_t> ids) const;
  // `ids` has a checkpoint from now on; their number is a positive multiple of step(). Returns the
  // one that they already have instead, if any.
  std::optional<int> insert(std::string_view salt, std::span<const int32_t> ids, int checkpoint);
  // Forgets a checkpoint, and the nodes that then lead to none.
  void erase(int checkpoint);

 private:
  struct Node {
    int32_t parent = -1;
    int32_t checkpoint = -1;
    int32_t children = 0;
    std::vector<int32_t> ids;
    std::string salt;  // of a root
    PrefixKey key;     // of a text without a salt, where it is published
  };
  std::optional<int32_t> child(int32_t parent, std::span<const int32_t> ids) const;
  std::optional<int32_t> root(std::string_view salt) const;
  int32_t add(Node node, size_t hash);
  void remove_unused(int32_t node);
  void publish_stored(std::span<const int32_t> nodes);

  int64_t step_;
  BlockLedger ledger_;
  Digest fingerprint_{};
  std::vector<Node> nodes_;
  std::vector<int32_t> free_;
  std::unordered_multimap<size_t, int32_t> by_hash_;  // hash of parent and ids, or of a salt
  std::unordered_map<int, int32_t> node_of_checkpoint_;
};

}  // namespace dsv4
