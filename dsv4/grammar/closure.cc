#include "dsv4/grammar/closure.h"

#include <algorithm>

namespace dsv4 {
namespace {

uint64_t key_of(NodeId node, int32_t below) {
  return uint64_t{static_cast<uint32_t>(node)} << 32 | static_cast<uint32_t>(below);
}

}  // namespace

Closure::Closure(const Automaton& automaton, StackSets& stacks, std::function<void()> work)
    : automaton_(automaton),
      stacks_(stacks),
      work_(std::move(work)),
      entered_(automaton.rules.size()) {
}

// Whether nothing but the end of its rule follows a node, at most some empty edges later.
bool Closure::only_ends(NodeId id) const {
  for (int edges = 0; edges < 8; ++edges) {
    const Automaton::Node& node = automaton_.nodes[static_cast<size_t>(id)];
    if (!node.symbols.empty() || !node.calls.empty()) return false;
    if (node.accepts) return node.empty.empty();
    if (node.empty.size() != 1) return false;
    id = node.empty.front();
  }
  return false;
}

std::vector<GrammarPlace> Closure::of(const std::vector<GrammarPlace>& from) {
  for (const RuleId rule : opened_) entered_[static_cast<size_t>(rule)] = {};
  opened_.clear();
  seen_.clear();
  todo_.clear();
  readers_.clear();
  accepts_ = false;
  for (const GrammarPlace& place : from) todo_.push_back({place.node, place.stacks});
  while (!todo_.empty()) {
    const Item item = todo_.back();
    todo_.pop_back();
    if (seen_.insert(key_of(item.node, item.below))) visit(item);
  }
  std::vector<StackSets::Frame> places;
  for (const Item& item : readers_) places.push_back({item.node, stacks_of(item.below)});
  std::sort(places.begin(), places.end());
  std::vector<GrammarPlace> out;
  for (const auto& [node, stacks] : places) {
    if (!out.empty() && out.back().node == node) {
      out.back().stacks = stacks_.either(out.back().stacks, stacks);
    } else {
      out.push_back({node, stacks});
    }
  }
  return out;
}

void Closure::visit(const Item& item) {
  work_();
  const Automaton::Node& node = automaton_.nodes[static_cast<size_t>(item.node)];
  if (!node.symbols.empty()) readers_.push_back(item);
  for (const NodeId target : node.empty) todo_.push_back({target, item.below});
  for (const Automaton::Call& one : node.calls) call(one, item.below);
  if (node.accepts) end(item.below);
}

void Closure::call(const Automaton::Call& call, Below below) {
  const Below rule = -1 - call.rule;
  Entered& callee = entered(rule);
  if (!callee.open) {
    callee.open = true;
    opened_.push_back(call.rule);
    todo_.push_back({automaton_.rules[static_cast<size_t>(call.rule)], rule});
  }
  // A call at the end of a rule needs no return of its own: stacks stay short.
  const Item caller{only_ends(call.target) ? -1 : call.target, below};
  callee.callers.push_back(caller);
  if (callee.ended) give_back(caller);
}

void Closure::give_back(const Item& caller) {
  if (caller.node < 0) {
    end(caller.below);
  } else {
    todo_.push_back(caller);
  }
}

void Closure::end(Below below) {
  if (below >= 0) {
    if (!seen_.insert(key_of(-1, below))) return;
    for (const StackSets::Frame& frame : stacks_.frames(below)) {
      work_();
      if (frame.node == StackSets::kEnd) {
        accepts_ = true;
      } else {
        todo_.push_back({frame.node, frame.below});
      }
    }
    return;
  }
  if (entered(below).ended) return;
  entered(below).ended = true;
  // A rule that ends here may be called by one that ends here too; left recursion is refused, so
  // this ends.
  const std::vector<Item> callers = entered(below).callers;
  for (const Item& caller : callers) give_back(caller);
}

StackSets::Id Closure::stacks_of(Below below) {
  if (below >= 0) return below;
  if (entered(below).stacks >= 0) return entered(below).stacks;
  std::vector<StackSets::Frame> frames;
  const std::vector<Item> callers = entered(below).callers;
  for (const Item& caller : callers) {
    work_();
    const StackSets::Id stacks = stacks_of(caller.below);
    if (caller.node >= 0) {
      frames.push_back({caller.node, stacks});
    } else {
      const std::vector<StackSets::Frame>& all = stacks_.frames(stacks);
      frames.insert(frames.end(), all.begin(), all.end());
    }
  }
  return entered(below).stacks = stacks_.of(std::move(frames));
}

}  // namespace dsv4
