// ReplayMap: the ids that the model itself wrote for a finished turn (docs/spec/serving.md 1.7).
//
// A parsed answer that comes back in the history may be tokenized differently from what the model
// wrote, and the prefix cache would miss. The map remembers spellings, never meaning:
// record_output() derives the turn that an entry is found by from the ids themselves.
//
// Bounded in turns and bytes; the turn that was not used for the longest time leaves first. Any
// method may be called from many threads.

#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "dsv4/chat/conversation.h"
#include "dsv4/chat/output_parser.h"

namespace dsv4 {

// SHA-256 of everything that the rendered turn depends on.
using TurnKey = std::array<uint8_t, 32>;

// `salt` separates clients. `with_reasoning`: the turn is rendered with its reasoning.
TurnKey turn_key(const std::string& salt, bool has_tools, bool with_reasoning,
                 const ChatTurn& turn);

// What stands between the assistant's header (with its think marker) and the end of the turn.
struct RecordedTurn {
  std::vector<int32_t> ids;
  std::string text;  // the bytes of the ids
};

class Tokenizer;

class ReplayMap {
 public:
  explicit ReplayMap(size_t max_turns = 100'000, size_t max_bytes = size_t{256} << 20)
      : max_turns_(max_turns), max_bytes_(max_bytes) {}

  std::shared_ptr<const RecordedTurn> find(const TurnKey& key);
  // A turn that is larger than the whole map is not kept.
  void record(const TurnKey& key, RecordedTurn turn);

  // The turn that was not used for the longest time first.
  void for_each(const std::function<void(const TurnKey&, const RecordedTurn&)>& visit) const;

  size_t turns() const;
  int64_t hits() const;  // of find()
  int64_t misses() const;
  size_t bytes() const;

 private:
  struct Entry {
    std::shared_ptr<const RecordedTurn> turn;
    std::list<TurnKey>::iterator use;
  };
  void erase(std::map<TurnKey, Entry>::iterator entry);

  const size_t max_turns_, max_bytes_;
  mutable std::mutex mutex_;
  std::map<TurnKey, Entry> entries_;
  std::list<TurnKey> uses_;  // the latest use first
  size_t bytes_ = 0;
  int64_t hits_ = 0, misses_ = 0;
};

// Records an output that the model ended by itself: `ids` are what it wrote after a prompt that
// ended with the assistant's header (not with a prefix), without the end of the sentence. `parser`:
// as the client's answer was parsed. Outputs with a call that was cut are not recorded.
void record_output(ReplayMap& map, const std::string& salt, const ParserOptions& parser,
                   std::span<const int32_t> ids, const Tokenizer& tokenizer,
                   const MarkerIds& markers);

}  // namespace dsv4
