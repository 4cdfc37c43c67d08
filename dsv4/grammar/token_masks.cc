#include "dsv4/grammar/token_masks.h"

#include <algorithm>
#include <cstdint>

#include "dsv4/base/error.h"

namespace dsv4 {
namespace {

void set_bit(std::span<uint32_t> mask, int32_t token) {
  mask[static_cast<size_t>(token) / 32] |= uint32_t{1} << (token % 32);
}

constexpr size_t kMapNode = 48;  // what a map's node has besides its value

bool has_bit(std::span<const uint32_t> mask, int32_t token) {
  return (mask[static_cast<size_t>(token) / 32] >> (token % 32) & 1) != 0;
}

}  // namespace

TokenTree::TokenTree(const Tokenizer& tokenizer, const MarkerIds& markers, std::vector<int32_t> eos,
                     int32_t vocab_size)
    : eos_(std::move(eos)), vocab_size_(vocab_size) {
  const int32_t known = std::min(tokenizer.vocab_size(), vocab_size);
  dsml_ = markers.id(Marker::kDsml).value_or(-1);
  std::vector<std::pair<std::string_view, int32_t>> sorted;
  bytes_.resize(static_cast<size_t>(vocab_size));
  added_.assign(static_cast<size_t>(vocab_size), true);
  for (int32_t id = 0; id < known; ++id) {
    const auto index = static_cast<size_t>(id);
    bytes_[index] = std::string(tokenizer.token_bytes(id));
    added_[index] = tokenizer.is_special(id) || markers.marker(id).has_value() ||
                    tokenizer.id(bytes_[index]) == id;
    if (!added_[index] && !bytes_[index].empty()) sorted.emplace_back(bytes_[index], id);
  }
  std::sort(sorted.begin(), sorted.end());
  std::vector<int32_t> open;  // nodes on the way to the latest token
  std::string_view previous;
  const auto close_to = [&](size_t depth) {
    while (open.size() > depth) {
      nodes_[static_cast<size_t>(open.back())].next = static_cast<int32_t>(nodes_.size());
      open.pop_back();
    }
  };
  for (const auto& [bytes, id] : sorted) {
    size_t shared = 0;
    while (shared < std::min(bytes.size(), previous.size()) && bytes[shared] == previous[shared])
      ++shared;
    close_to(shared);
    for (size_t i = shared; i < bytes.size(); ++i) {
      open.push_back(static_cast<int32_t>(nodes_.size()));
      nodes_.push_back({static_cast<uint8_t>(bytes[i]), static_cast<uint16_t>(i), 0, -1});
    }
    Node& last = nodes_[static_cast<size_t>(open.back())];
    if (last.token < 0) {
      last.token = id;
    } else {
      twins_.emplace_back(last.token, id);
    }
    previous = bytes;
  }
  close_to(0);
}

TokenMasks::TokenMasks(Automaton automaton, std::shared_ptr<const TokenTree> tree,
                       size_t max_mask_bytes, std::shared_ptr<GrammarMemory> memory)
    : automaton_(std::move(automaton)),
      tree_(std::move(tree)),
      max_masks_(std::max<size_t>(max_mask_bytes / mask_bytes(), 1)),
      memory_(memory != nullptr ? std::move(memory) : std::make_shared<GrammarMemory>(SIZE_MAX)),
      stacks_([this](size_t bytes) { take_or_fail(bytes); }, [this] { count_work(); }),
      closure_(automaton_, stacks_, [this] { count_work(); }) {
  most_work_ = kMaxWork;
  try {
    auto places = closure_.of({{automaton_.rules[0], stacks_.empty()}});
    intern(std::move(places), closure_.accepts());
  } catch (...) {
    memory_->bytes -= bytes_;
    throw;
  }
}

TokenMasks::~TokenMasks() {
  memory_->bytes -= bytes_;
}

bool TokenMasks::take(size_t bytes) {
  if (memory_->bytes += bytes; memory_->bytes > memory_->most) {
    memory_->bytes -= bytes;
    return false;
  }
  bytes_ += bytes;
  return true;
}

void TokenMasks::give_back(size_t bytes) {
  memory_->bytes -= bytes;
  bytes_ -= bytes;
}

void TokenMasks::take_or_fail(size_t bytes) {
  if (bytes_ + bytes > kMaxBytes)
    fail(ErrorCode::kResource, "the grammar takes more than {} MiB", kMaxBytes >> 20);
  while (!take(bytes)) {
    if (masks_.empty())
      fail(ErrorCode::kResource, "all grammars together have {} bytes", memory_->most);
    drop_oldest_mask();
  }
}

void TokenMasks::count_work() {
  if (++work_ <= most_work_) return;
  // The whole of a call counts, so that what fails is the grammar and not where it stands.
  fail(states_.empty() ? ErrorCode::kBadInput : ErrorCode::kResource,
       "the grammar is too ambiguous: it reads the text in too many ways at once (more than {} "
       "steps for one token)",
       kMaxWork);
}

TokenMasks::State TokenMasks::intern(std::vector<GrammarPlace> places, bool accepts) {
  if (places.empty() && !accepts) return kDead;
  // Whether it accepts belongs to the state: a marker that no node has stands for it.
  std::vector<GrammarPlace> key = places;
  if (accepts) key.push_back({-1, -1});
  if (const auto known = state_ids_.find(key); known != state_ids_.end()) return known->second;
  if (states_.size() >= kMaxStates)
    fail(ErrorCode::kResource, "the grammar has more than {} states", kMaxStates);
  take_or_fail(sizeof(StateData) + 2 * places.size() * sizeof(GrammarPlace) + kMapNode);
  auto data = std::make_unique<StateData>();
  data->places = std::move(places);
  data->accepts = accepts;
  data->next.fill(kUnknown);
  const auto state = State(states_.size());
  states_.push_back(std::move(data));
  state_ids_.emplace(std::move(key), state);
  return state;
}

TokenMasks::State TokenMasks::step(State state, int symbol) {
  const int32_t known = states_[static_cast<size_t>(state)]->next[static_cast<size_t>(symbol)];
  return known != kUnknown ? known : compute_step(state, symbol);
}

TokenMasks::State TokenMasks::compute_step(State state, int symbol) {
  std::vector<GrammarPlace> from;
  SymbolSet same = ~SymbolSet();  // the symbols that read exactly the edges that this one reads
  for (const GrammarPlace& place : states_[static_cast<size_t>(state)]->places) {
    for (const auto& edge : automaton_.nodes[static_cast<size_t>(place.node)].symbols) {
      const bool reads = edge.symbols[static_cast<size_t>(symbol)];
      same &= reads ? edge.symbols : ~edge.symbols;
      if (reads) from.push_back({edge.target, place.stacks});
    }
  }
  auto places = closure_.of(from);
  const State next = intern(std::move(places), closure_.accepts());
  std::array<int32_t, kNumSymbols>& known = states_[static_cast<size_t>(state)]->next;
  for (size_t other = 0; other < known.size(); ++other) {
    if (same[other]) known[other] = next;
  }
  return next;
}

TokenMasks::State TokenMasks::advance_bytes(State state, std::string_view bytes) {
  const std::lock_guard lock(mutex_);
  for (size_t i = 0; i < bytes.size() && state != kDead; ++i) {
    most_work_ = work_ + kMaxWork;
    state = step(state, static_cast<unsigned char>(bytes[i]));
  }
  return state;
}

TokenMasks::State TokenMasks::advance(State state, int32_t token) {
  DSV4_CHECK(token >= 0 && token < tree_->vocab_size(), "token {}", token);
  if (state == kDead) return kDead;
  if (token == tree_->dsml()) {
    const std::lock_guard lock(mutex_);
    most_work_ = work_ + kMaxWork;
    return step(state, kDsmlSymbol);
  }
  if (tree_->is_added(token) || tree_->bytes(token).empty()) return kDead;
  return advance_bytes(state, tree_->bytes(token));
}

bool TokenMasks::accepts(State state) {
  const std::lock_guard lock(mutex_);
  return state != kDead && states_[static_cast<size_t>(state)]->accepts;
}

size_t TokenMasks::states() const {
  const std::lock_guard lock(mutex_);
  return states_.size();
}

size_t TokenMasks::bytes() const {
  const std::lock_guard lock(mutex_);
  return bytes_;
}

uint64_t TokenMasks::mask(State state, std::span<uint32_t> out) {
  DSV4_CHECK(state != kDead && out.size() == tree_->words(), "state {}, {} words", state,
             out.size());
  const std::lock_guard lock(mutex_);
  if (const auto known = masks_.find(state); known != masks_.end()) {
    uses_.splice(uses_.begin(), uses_, known->second.use);
    std::copy(known->second.words.begin(), known->second.words.end(), out.begin());
    return 0;
  }
  const uint64_t before = work_;
  most_work_ = work_ + kMaxWork;
  walk(state, out);
  DSV4_CHECK(std::any_of(out.begin(), out.end(), [](uint32_t word) { return word != 0; }),
             "no token of the vocabulary continues the grammar in state {}", state);
  keep_mask(state, out);
  return work_ - before;
}

// Unless the memory has no room for any.
void TokenMasks::keep_mask(State state, std::span<const uint32_t> mask) {
  if (masks_.size() >= max_masks_) drop_oldest_mask();
  while (!take(mask_bytes())) {
    if (masks_.empty()) return;
    drop_oldest_mask();
  }
  uses_.push_front(state);
  masks_[state] = {{mask.begin(), mask.end()}, uses_.begin()};
}

void TokenMasks::drop_oldest_mask() {
  masks_.erase(uses_.back());
  uses_.pop_back();
  give_back(mask_bytes());
}

void TokenMasks::walk(State state, std::span<uint32_t> out) {
  std::fill(out.begin(), out.end(), 0);
  const std::vector<TokenTree::Node>& nodes = tree_->nodes();
  std::vector<State> path = {state};  // [depth] before the byte of that depth
  for (size_t i = 0; i < nodes.size();) {
    const TokenTree::Node& node = nodes[i];
    const State next = step(path[node.depth], node.byte);
    if (next == kDead) {
      i = static_cast<size_t>(node.next);
      continue;
    }
    if (node.token >= 0) set_bit(out, node.token);
    if (path.size() < node.depth + size_t{2}) path.resize(node.depth + size_t{2});
    path[node.depth + size_t{1}] = next;
    ++i;
  }
  for (const auto& [token, twin] : tree_->twins()) {
    if (has_bit(out, token)) set_bit(out, twin);
  }
  if (tree_->dsml() >= 0 && step(state, kDsmlSymbol) != kDead) set_bit(out, tree_->dsml());
  if (states_[static_cast<size_t>(state)]->accepts) {
    for (const int32_t id : tree_->eos()) set_bit(out, id);
  }
}

}  // namespace dsv4
