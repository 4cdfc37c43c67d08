#include "dsv4/chat/replay_map.h"

#include <algorithm>

#include "dsv4/chat/chat_message.h"
#include "dsv4/chat/feed_token.h"
#include "dsv4/chat/sha256.h"
#include "dsv4/text/tokenizer.h"

namespace dsv4 {
namespace {

// Fields with their lengths, so that no two lists of fields are the same bytes.
class Fields {
 public:
  void add(std::string_view field) {
    const uint64_t size = field.size();
    for (int shift = 0; shift < 64; shift += 8) bytes_ += static_cast<char>(size >> shift & 0xff);
    bytes_ += field;
  }
  TurnKey key() const { return sha256(bytes_); }

 private:
  std::string bytes_;
};

// Bytes that an entry costs, bookkeeping included.
size_t cost(const RecordedTurn& turn) {
  constexpr size_t kBookkeeping = 256;
  return kBookkeeping + turn.ids.size() * sizeof(int32_t) + turn.text.size();
}

}  // namespace

TurnKey turn_key(const std::string& salt, bool has_tools, bool with_reasoning,
                 const ChatTurn& turn) {
  Fields fields;
  fields.add(salt);
  fields.add(has_tools ? "tools" : "");
  fields.add(with_reasoning ? "reasoning" : "");
  if (with_reasoning) fields.add(turn.reasoning.value_or(""));
  fields.add(turn.text);
  for (const ToolCall& call : turn.calls) {
    fields.add(call.name);
    fields.add(to_json(call.arguments));
  }
  return fields.key();
}

std::shared_ptr<const RecordedTurn> ReplayMap::find(const TurnKey& key) {
  const std::lock_guard lock(mutex_);
  const auto entry = entries_.find(key);
  ++(entry == entries_.end() ? misses_ : hits_);
  if (entry == entries_.end()) return nullptr;
  uses_.splice(uses_.begin(), uses_, entry->second.use);
  return entry->second.turn;
}

void ReplayMap::record(const TurnKey& key, RecordedTurn turn) {
  const std::lock_guard lock(mutex_);
  if (const auto old = entries_.find(key); old != entries_.end()) erase(old);
  const size_t size = cost(turn);
  if (size > max_bytes_ || max_turns_ == 0) return;
  while (entries_.size() >= max_turns_ || bytes_ + size > max_bytes_)
    erase(entries_.find(uses_.back()));
  uses_.push_front(key);
  entries_[key] = {std::make_shared<const RecordedTurn>(std::move(turn)), uses_.begin()};
  bytes_ += size;
}

void ReplayMap::erase(std::map<TurnKey, Entry>::iterator entry) {
  bytes_ -= cost(*entry->second.turn);
  uses_.erase(entry->second.use);
  entries_.erase(entry);
}

void ReplayMap::for_each(
    const std::function<void(const TurnKey&, const RecordedTurn&)>& visit) const {
  const std::lock_guard lock(mutex_);
  for (auto key = uses_.rbegin(); key != uses_.rend(); ++key) visit(*key, *entries_.at(*key).turn);
}

size_t ReplayMap::turns() const {
  const std::lock_guard lock(mutex_);
  return entries_.size();
}

int64_t ReplayMap::hits() const {
  const std::lock_guard lock(mutex_);
  return hits_;
}

int64_t ReplayMap::misses() const {
  const std::lock_guard lock(mutex_);
  return misses_;
}

size_t ReplayMap::bytes() const {
  const std::lock_guard lock(mutex_);
  return bytes_;
}

void record_output(ReplayMap& map, const std::string& salt, const ParserOptions& options,
                   std::span<const int32_t> ids, const Tokenizer& tokenizer,
                   const MarkerIds& markers) {
  const OutputStage stage = options.stage;
  const bool has_tools = options.tools;
  if (stage == OutputStage::kBlock) return;  // the prompt has a part of what is rendered
  ChatMessage message;
  OutputParser parser(
      {.stage = stage, .tools = has_tools, .declared = options.declared, .types = options.types},
      message);
  for (const int32_t id : ids) {
    feed_token(parser, id, tokenizer, markers);
  }
  parser.finish(OutputEnd::kModel);
  if (parser.counts().truncated > 0) return;
  const ChatTurn turn = turn_of(message);
  const auto record = [&](bool with_reasoning, std::span<const int32_t> spelled) {
    map.record(turn_key(salt, has_tools, with_reasoning, turn),
               {{spelled.begin(), spelled.end()}, tokenizer.decode(spelled)});
  };
  if (stage == OutputStage::kContent) return record(false, ids);
  record(true, ids);
  // Rendered without its reasoning, the turn begins after the end of that.
  const auto think_end = markers.id(Marker::kThinkEnd);
  const auto end = std::find(ids.begin(), ids.end(), think_end.value_or(-1));
  if (end != ids.end()) record(false, ids.subspan(static_cast<size_t>(end - ids.begin()) + 1));
}

}  // namespace dsv4
