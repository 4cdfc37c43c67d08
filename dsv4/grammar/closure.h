// Everything that a run of a grammar reaches without reading a symbol. The callers of a rule that
// is entered are collected before their stacks are made, so that one place in a rule has one set
// of stacks however many ways lead to it.

#pragma once

#include <functional>
#include <vector>

#include "dsv4/grammar/seen_set.h"
#include "dsv4/grammar/stack_sets.h"

namespace dsv4 {

// A node that reads a symbol, with the stacks below it.
struct GrammarPlace {
  NodeId node;
  StackSets::Id stacks;
  friend auto operator<=>(const GrammarPlace&, const GrammarPlace&) = default;
};

class Closure {
 public:
  // `work()` is called for each step and may throw.
  Closure(const Automaton& automaton, StackSets& stacks, std::function<void()> work);

  // What can be reached from the places; where that reads a symbol, sorted, each node once.
  // accepts(): the grammar may end there.
  std::vector<GrammarPlace> of(const std::vector<GrammarPlace>& from);
  bool accepts() const { return accepts_; }
  size_t places() const { return seen_.size(); }

 private:
  // A set of stacks, or below 0 those of a rule that was entered here: -1 - rule.
  using Below = int32_t;
  struct Item {
    NodeId node;
    Below below;
  };
  struct Entered {
    std::vector<Item> callers;  // node -1: whoever `below` returns to
    bool open = false, ended = false;
    StackSets::Id stacks = -1;  // where they have been made
  };

  Entered& entered(Below below) { return entered_[static_cast<size_t>(-1 - below)]; }
  bool only_ends(NodeId node) const;
  void visit(const Item& item);
  void call(const Automaton::Call& call, Below below);
  void give_back(const Item& caller);  // to it, from a rule that has ended
  void end(Below below);
  StackSets::Id stacks_of(Below below);

  const Automaton& automaton_;
  StackSets& stacks_;
  const std::function<void()> work_;
  SeenSet seen_;
  std::vector<Entered> entered_;  // [rule]
  std::vector<RuleId> opened_;
  std::vector<Item> todo_, readers_;
  bool accepts_ = false;
};

}  // namespace dsv4
