#include "dsv4/grammar/automaton.h"

#include <algorithm>

#include "dsv4/base/error.h"

namespace dsv4 {

SymbolSet byte_range(int first, int last) {
  if (first > last) return {};
  const auto count = static_cast<size_t>(last - first + 1);
  return ~SymbolSet() >> (kNumSymbols - count) << static_cast<size_t>(first);
}

void AutomatonBuilder::count_edge() {
  if (++edges_ > kMaxEdges)
    fail(ErrorCode::kBadInput, "the grammar is too large: more than {} edges", kMaxEdges);
}

NodeId AutomatonBuilder::node() {
  if (automaton_.nodes.size() >= kMaxNodes)
    fail(ErrorCode::kBadInput, "the grammar is too large: more than {} nodes", kMaxNodes);
  automaton_.nodes.emplace_back();
  return static_cast<NodeId>(automaton_.nodes.size() - 1);
}

void AutomatonBuilder::empty_edge(NodeId from, NodeId to) {
  count_edge();
  automaton_.nodes[static_cast<size_t>(from)].empty.push_back(to);
}

void AutomatonBuilder::symbol_edge(NodeId from, const SymbolSet& symbols, NodeId to) {
  count_edge();
  automaton_.nodes[static_cast<size_t>(from)].symbols.push_back({symbols, to});
}

NodeId AutomatonBuilder::symbols(NodeId from, const SymbolSet& symbols) {
  const NodeId to = node();
  symbol_edge(from, symbols, to);
  return to;
}

NodeId AutomatonBuilder::literal(NodeId from, std::string_view bytes) {
  for (const char c : bytes) {
    const auto byte = static_cast<unsigned char>(c);
    from = symbols(from, byte_range(byte, byte));
  }
  return from;
}

NodeId AutomatonBuilder::dsml(NodeId from) {
  return symbols(from, byte_range(kDsmlSymbol, kDsmlSymbol));
}

NodeId AutomatonBuilder::call(NodeId from, RuleId rule) {
  const NodeId to = node();
  automaton_.nodes[static_cast<size_t>(from)].calls.push_back({rule, to});
  return to;
}

RuleId AutomatonBuilder::declare() {
  const NodeId first = node();
  automaton_.rules.push_back(first);
  return static_cast<RuleId>(automaton_.rules.size() - 1);
}

Automaton AutomatonBuilder::finish() {
  check_left_recursion();
  drop_dead_ends();
  return std::move(automaton_);
}

namespace {

// The rules that each rule can call before it reads a symbol, in one pass over all nodes. What
// follows a call is visited only when the called rule turns out to end without a symbol.
class FirstCalls {
 public:
  explicit FirstCalls(const Automaton& automaton)
      : automaton_(automaton),
        seen_(automaton.nodes.size()),
        nullable_(automaton.rules.size()),
        waiting_(automaton.rules.size()),
        called_(automaton.rules.size()) {
    for (size_t rule = 0; rule < automaton.rules.size(); ++rule) {
      todo_.push_back({static_cast<RuleId>(rule), automaton.rules[rule]});
      while (!todo_.empty()) visit_next();
    }
  }
  const std::vector<std::vector<RuleId>>& called() const { return called_; }

 private:
  struct Place {
    RuleId rule;
    NodeId node;  // of that rule alone
  };

  void visit_next() {
    const Place at = todo_.back();
    todo_.pop_back();
    if (seen_[static_cast<size_t>(at.node)]) return;
    seen_[static_cast<size_t>(at.node)] = true;
    const Automaton::Node& node = automaton_.nodes[static_cast<size_t>(at.node)];
    const auto rule = static_cast<size_t>(at.rule);
    if (node.accepts && !nullable_[rule]) {
      nullable_[rule] = true;
      todo_.insert(todo_.end(), waiting_[rule].begin(), waiting_[rule].end());
    }
    for (const NodeId target : node.empty) todo_.push_back({at.rule, target});
    for (const Automaton::Call& call : node.calls) {
      const auto callee = static_cast<size_t>(call.rule);
      called_[rule].push_back(call.rule);
      (nullable_[callee] ? todo_ : waiting_[callee]).push_back({at.rule, call.target});
    }
  }

  const Automaton& automaton_;
  std::vector<bool> seen_, nullable_;
  std::vector<std::vector<Place>> waiting_;  // [rule] where the callers of the rule continue
  std::vector<std::vector<RuleId>> called_;
  std::vector<Place> todo_;
};

}  // namespace

namespace {

// The nodes from which the end of their rule can be reached, from the ends backwards.
class LivingNodes {
 public:
  explicit LivingNodes(const Automaton& automaton)
      : automaton_(automaton),
        first_before_(automaton.nodes.size() + 1),
        lives_(automaton.nodes.size()),
        callers_(automaton.rules.size()),
        rule_at_(automaton.nodes.size(), -1) {
    for (size_t rule = 0; rule < automaton.rules.size(); ++rule)
      rule_at_[static_cast<size_t>(automaton.rules[rule])] = static_cast<RuleId>(rule);
    for_edges([&](NodeId target, size_t) { ++first_before_[static_cast<size_t>(target)]; });
    size_t end = 0;
    for (size_t& count : first_before_) count = end += count;
    before_.resize(end);
    // From the end of each list to its beginning, which first_before_ then is.
    for_edges([&](NodeId target, size_t node) {
      before_[--first_before_[static_cast<size_t>(target)]] = node;
    });
    for (size_t node = 0; node < automaton.nodes.size(); ++node) {
      for (const Automaton::Call& call : automaton.nodes[node].calls)
        callers_[static_cast<size_t>(call.rule)].push_back(node);
      if (automaton.nodes[node].accepts) todo_.push_back(node);
    }
    while (!todo_.empty()) visit_next();
  }
  bool lives(NodeId node) const { return lives_[static_cast<size_t>(node)]; }
  bool lives(const Automaton::Call& call) const {
    return lives(call.target) && lives(automaton_.rules[static_cast<size_t>(call.rule)]);
  }

 private:
  template <class Edge>
  void for_edges(const Edge& edge) const {
    for (size_t node = 0; node < automaton_.nodes.size(); ++node) {
      const Automaton::Node& edges = automaton_.nodes[node];
      for (const auto& one : edges.symbols) edge(one.target, node);
      for (const NodeId target : edges.empty) edge(target, node);
      for (const Automaton::Call& call : edges.calls) edge(call.target, node);
    }
  }
  bool reaches_a_living_node(size_t node) const {
    const Automaton::Node& edges = automaton_.nodes[node];
    const auto any = [](const auto& list, const auto& is) {
      return std::any_of(list.begin(), list.end(), is);
    };
    return edges.accepts ||
           any(edges.symbols,
               [&](const auto& edge) { return edge.symbols.any() && lives(edge.target); }) ||
           any(edges.empty, [&](NodeId target) { return lives(target); }) ||
           any(edges.calls, [&](const Automaton::Call& call) { return lives(call); });
  }
  void visit_next() {
    const size_t node = todo_.back();
    todo_.pop_back();
    if (lives_[node] || !reaches_a_living_node(node)) return;
    lives_[node] = true;
    for (size_t i = first_before_[node]; i < first_before_[node + 1]; ++i)
      todo_.push_back(before_[i]);
    if (rule_at_[node] < 0) return;
    const std::vector<size_t>& callers = callers_[static_cast<size_t>(rule_at_[node])];
    todo_.insert(todo_.end(), callers.begin(), callers.end());
  }

  const Automaton& automaton_;
  std::vector<size_t> before_, first_before_;  // [first_before_[node]...]: with an edge to it
  std::vector<bool> lives_;
  std::vector<std::vector<size_t>> callers_;  // [rule]
  std::vector<RuleId> rule_at_;               // [node] that begins there; -1: none
  std::vector<size_t> todo_;
};

}  // namespace

void AutomatonBuilder::drop_dead_ends() {
  const LivingNodes living(automaton_);
  if (!living.lives(automaton_.rules[0]))
    fail(ErrorCode::kBadInput, "nothing is valid: no text reaches the end of the grammar");
  for (Automaton::Node& node : automaton_.nodes) {
    std::erase_if(node.symbols, [&](const auto& edge) {
      return edge.symbols.none() || !living.lives(edge.target);
    });
    std::erase_if(node.empty, [&](NodeId target) { return !living.lives(target); });
    std::erase_if(node.calls, [&](const auto& call) { return !living.lives(call); });
  }
}

void AutomatonBuilder::check_left_recursion() const {
  const FirstCalls calls(automaton_);
  const size_t count = automaton_.rules.size();
  const std::vector<std::vector<RuleId>>& first = calls.called();
  // Depth-first search for a cycle, with its own stack: chains of rules may be long.
  enum class Mark : uint8_t { kNew, kOpen, kDone };
  std::vector<Mark> marks(count, Mark::kNew);
  for (size_t root = 0; root < count; ++root) {
    std::vector<std::pair<size_t, size_t>> stack;  // rule, how many of its calls were followed
    if (marks[root] == Mark::kNew) stack.emplace_back(root, 0);
    while (!stack.empty()) {
      auto& [rule, next] = stack.back();
      marks[rule] = Mark::kOpen;
      if (next == first[rule].size()) {
        marks[rule] = Mark::kDone;
        stack.pop_back();
        continue;
      }
      const auto called = static_cast<size_t>(first[rule][next++]);
      if (marks[called] == Mark::kOpen)
        fail(ErrorCode::kBadInput, "the schema refers to itself without anything in between");
      if (marks[called] == Mark::kNew) stack.emplace_back(called, 0);
    }
  }
}

Automaton either(Automaton first, const Automaton& second) {
  const auto nodes = static_cast<NodeId>(first.nodes.size());
  const auto rules = static_cast<RuleId>(first.rules.size());
  for (Automaton::Node node : second.nodes) {
    for (auto& edge : node.symbols) edge.target += nodes;
    for (NodeId& target : node.empty) target += nodes;
    for (Automaton::Call& call : node.calls) call.rule += rules, call.target += nodes;
    first.nodes.push_back(std::move(node));
  }
  for (const NodeId begin : second.rules) first.rules.push_back(begin + nodes);
  // Rule 0 must be the grammar, and nothing may call it by that number any more: its old content
  // becomes the last rule.
  const auto moved = static_cast<RuleId>(first.rules.size());
  first.rules.push_back(first.rules[0]);
  for (Automaton::Node& node : first.nodes) {
    for (Automaton::Call& call : node.calls)
      if (call.rule == 0) call.rule = moved;
  }
  const auto begin = static_cast<NodeId>(first.nodes.size()), end = begin + 1;
  first.nodes.resize(first.nodes.size() + 2);
  first.nodes[static_cast<size_t>(begin)].calls = {{moved, end}, {rules, end}};
  first.nodes[static_cast<size_t>(end)].accepts = true;
  first.rules[0] = begin;
  return first;
}

}  // namespace dsv4
