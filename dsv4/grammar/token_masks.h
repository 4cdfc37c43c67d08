// Which tokens may come next (docs/spec/serving.md 3.4). A state of a run is the places in the
// grammar where the text so far can stand, each with its stacks (stack_sets.h); states are
// numbered as they are met, and what was computed of one is kept: its successor for each symbol
// and its mask. Roll-back is an older number.
//
//   mask(state) = tokens whose bytes lead from the state to another one; EOS where a rule 0 ends
//
// Added tokens never pass, except DSML and, where the grammar may end, EOS.

#pragma once

#include <array>
#include <atomic>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "dsv4/chat/markers.h"
#include "dsv4/grammar/automaton.h"
#include "dsv4/grammar/closure.h"
#include "dsv4/grammar/stack_sets.h"
#include "dsv4/text/tokenizer.h"

namespace dsv4 {

// The bytes of all tokens, sorted into a tree. Constant; shared by all grammars of a model.
class TokenTree {
 public:
  // `eos`: the ids that end a sequence.
  TokenTree(const Tokenizer& tokenizer, const MarkerIds& markers, std::vector<int32_t> eos,
            int32_t vocab_size);

  // A node of the tree in depth-first order.
  struct Node {
    uint8_t byte;
    uint16_t depth;  // of the byte in its token, from 0
    int32_t next;    // the node after its subtree
    int32_t token;   // that ends here; -1: none
  };
  const std::vector<Node>& nodes() const { return nodes_; }
  // Tokens with the bytes of another one; the mask gives them the same bit.
  const std::vector<std::pair<int32_t, int32_t>>& twins() const { return twins_; }
  std::string_view bytes(int32_t token) const { return bytes_[static_cast<size_t>(token)]; }
  int32_t dsml() const { return dsml_; }
  const std::vector<int32_t>& eos() const { return eos_; }
  int32_t vocab_size() const { return vocab_size_; }
  // Words of a mask: one bit per token.
  size_t words() const { return static_cast<size_t>(vocab_size_ + 31) / 32; }
  bool is_added(int32_t token) const { return added_[static_cast<size_t>(token)]; }

 private:
  std::vector<Node> nodes_;
  std::vector<std::pair<int32_t, int32_t>> twins_;
  std::vector<std::string> bytes_;
  std::vector<bool> added_;
  int32_t dsml_ = -1;
  std::vector<int32_t> eos_;
  int32_t vocab_size_;
};

// What several grammars take together. Their states and masks grow while answers are computed.
struct GrammarMemory {
  explicit GrammarMemory(size_t m) : most(m) {}
  const size_t most;
  std::atomic<size_t> bytes = 0;
};

class TokenMasks {
 public:
  using State = int32_t;
  static constexpr State kDead = -1;

  // `max_mask_bytes` bounds the masks that are kept. `memory`: null for a grammar alone.
  TokenMasks(Automaton automaton, std::shared_ptr<const TokenTree> tree,
             size_t max_mask_bytes = size_t{64} << 20,
             std::shared_ptr<GrammarMemory> memory = nullptr);
  ~TokenMasks();
  TokenMasks(const TokenMasks&) = delete;
  TokenMasks& operator=(const TokenMasks&) = delete;

  // Any thread may call these. Each throws kResource past kMaxStates states, past kMaxWork steps of
  // work in one call (a grammar that reads a text in many ways has many; the constructor throws
  // kBadInput for the first state), past kMaxBytes, and where all grammars of the memory would take
  // more than it has.
  static constexpr size_t kMaxStates = 100'000 / kLimitsBy, kMaxWork = 400'000 / kLimitsBy;
  static constexpr size_t kMaxBytes = (size_t{256} << 20) / kLimitsBy;
  State start() const { return 0; }
  State advance(State state, int32_t token);  // kDead where the mask forbids it
  State advance_bytes(State state, std::string_view bytes);
  // Whether the grammar may end here, and EOS may come.
  bool accepts(State state);
  // out: [words] u32, bit t of word t / 32 is token t. Throws kInvalidArgument where no token may
  // come: an unmasked sample would be worse. Returns the steps of work that it took.
  uint64_t mask(State state, std::span<uint32_t> out);

  size_t states() const;
  size_t bytes() const;  // of states, stacks and masks

 private:
  struct StateData {
    std::vector<GrammarPlace> places;  // that read a symbol
    bool accepts = false;
    std::array<int32_t, kNumSymbols> next;  // kUnknown until it is computed
  };
  static constexpr int32_t kUnknown = -2;

  State intern(std::vector<GrammarPlace> places, bool accepts);
  void count_work();
  State step(State state, int symbol);
  State compute_step(State state, int symbol);
  void walk(State state, std::span<uint32_t> out);
  bool take(size_t bytes);  // of the memory; false where it has no more
  void give_back(size_t bytes);
  void take_or_fail(size_t bytes);
  size_t mask_bytes() const { return tree_->words() * sizeof(uint32_t); }
  void drop_oldest_mask();
  void keep_mask(State state, std::span<const uint32_t> mask);

  const Automaton automaton_;
  const std::shared_ptr<const TokenTree> tree_;
  const size_t max_masks_;
  const std::shared_ptr<GrammarMemory> memory_;
  size_t bytes_ = 0;

  mutable std::mutex mutex_;
  std::vector<std::unique_ptr<StateData>> states_;
  std::map<std::vector<GrammarPlace>, State> state_ids_;
  struct Mask {
    std::vector<uint32_t> words;
    std::list<State>::iterator use;
  };
  std::unordered_map<State, Mask> masks_;
  std::list<State> uses_;              // the latest first
  uint64_t work_ = 0, most_work_ = 0;  // most: until which the present call may go on
  StackSets stacks_;
  Closure closure_;
};

}  // namespace dsv4
