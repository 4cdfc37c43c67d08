#include "dsv4/grammar/automaton.h"

#include "dsv4/base/error.h"

namespace dsv4 {

SymbolSet byte_range(int first, int last) {
  SymbolSet set;
  for (int i = first; i <= last; ++i) set.set(static_cast<size_t>(i));
  return set;
}

NodeId AutomatonBuilder::node() {
  if (automaton_.nodes.size() >= kMaxNodes)
    fail(ErrorCode::kBadInput, "the grammar is too large: more than {} nodes", kMaxNodes);
  automaton_.nodes.emplace_back();
  return static_cast<NodeId>(automaton_.nodes.size() - 1);
}

void AutomatonBuilder::empty_edge(NodeId from, NodeId to) {
  automaton_.nodes[static_cast<size_t>(from)].empty.push_back(to);
}

void AutomatonBuilder::symbol_edge(NodeId from, const SymbolSet& symbols, NodeId to) {
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
  return std::move(automaton_);
}

namespace {

// Which rules can end without a symbol, and which rules each one can call before its first symbol.
class FirstCalls {
 public:
  explicit FirstCalls(const Automaton& automaton)
      : automaton_(automaton), nullable_(automaton.rules.size()) {
    for (bool changed = true; changed;) {
      changed = false;
      for (size_t rule = 0; rule < nullable_.size(); ++rule) {
        if (nullable_[rule] || !reach(rule, nullptr)) continue;
        nullable_[rule] = changed = true;
      }
    }
  }

  // Whether the rule's end is reached without a symbol; `called` gets the rules on the way.
  bool reach(size_t rule, std::vector<RuleId>* called) const {
    std::vector<bool> seen(automaton_.nodes.size());
    std::vector<NodeId> todo = {automaton_.rules[rule]};
    bool ends = false;
    while (!todo.empty()) {
      const auto at = static_cast<size_t>(todo.back());
      todo.pop_back();
      if (seen[at]) continue;
      seen[at] = true;
      const Automaton::Node& node = automaton_.nodes[at];
      ends = ends || node.accepts;
      todo.insert(todo.end(), node.empty.begin(), node.empty.end());
      for (const Automaton::Call& call : node.calls) {
        if (called != nullptr) called->push_back(call.rule);
        if (nullable_[static_cast<size_t>(call.rule)]) todo.push_back(call.target);
      }
    }
    return ends;
  }

 private:
  const Automaton& automaton_;
  std::vector<bool> nullable_;
};

}  // namespace

void AutomatonBuilder::check_left_recursion() const {
  const FirstCalls calls(automaton_);
  const size_t count = automaton_.rules.size();
  std::vector<std::vector<RuleId>> first(count);
  for (size_t rule = 0; rule < count; ++rule) calls.reach(rule, &first[rule]);
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
