// A grammar as rules over bytes (docs/spec/serving.md 3.4): every rule is a nondeterministic
// automaton whose edges read one symbol, read nothing, or call a rule. Rules may call themselves,
// so a state of a run is a set of stacks (token_masks.h).
//
// A symbol is a byte or the DSML marker, which tool calls are made of.

#pragma once

#include <bitset>
#include <cstdint>
#include <string_view>
#include <vector>

namespace dsv4 {

inline constexpr int kDsmlSymbol = 256, kNumSymbols = 257;
using SymbolSet = std::bitset<kNumSymbols>;

// Fuzzers meet the limits of large grammars in small ones: at the full ones an input takes seconds.
#ifdef FUZZING_BUILD_MODE_UNSAFE_FOR_PRODUCTION
inline constexpr size_t kLimitsBy = 100;
#else
inline constexpr size_t kLimitsBy = 1;
#endif

SymbolSet byte_range(int first, int last);  // both included

using NodeId = int32_t;
using RuleId = int32_t;

struct Automaton {
  struct SymbolEdge {
    SymbolSet symbols;
    NodeId target;
  };
  struct Call {
    RuleId rule;
    NodeId target;  // after the rule
  };
  struct Node {
    std::vector<SymbolEdge> symbols;
    std::vector<NodeId> empty;
    std::vector<Call> calls;
    bool accepts = false;  // its rule may end here
  };
  std::vector<Node> nodes;
  std::vector<NodeId> rules;  // their first nodes; rule 0 is the grammar
};

// `piece(from)` at least `min` times and at most `max` (-1: any number), in an automaton that
// `builder` makes. Each piece must add a node or an edge: only these are limited.
template <class Builder, class Piece>
NodeId repeat_piece(Builder& builder, NodeId from, int64_t min, int64_t max, const Piece& piece) {
  for (int64_t i = 0; i < min; ++i) from = piece(from);
  if (max < 0) {
    const NodeId loop = builder.node();
    builder.empty_edge(from, loop);
    builder.empty_edge(piece(loop), loop);
    return loop;
  }
  const NodeId end = builder.node();
  for (int64_t i = min; i < max; ++i) {
    builder.empty_edge(from, end);
    from = piece(from);
  }
  builder.empty_edge(from, end);
  return end;
}

// Builds automata piece by piece: each function adds a piece that begins at a node and returns the
// node where it ends.
class AutomatonBuilder {
 public:
  // kBadInput with "the grammar is too large" past so many nodes, or edges that read a symbol or
  // nothing: a short text can describe many of either.
  static constexpr size_t kMaxNodes = 200'000 / kLimitsBy, kMaxEdges = 1'000'000 / kLimitsBy;

  NodeId node();
  void empty_edge(NodeId from, NodeId to);
  void symbol_edge(NodeId from, const SymbolSet& symbols, NodeId to);
  NodeId symbols(NodeId from, const SymbolSet& symbols);
  NodeId literal(NodeId from, std::string_view bytes);
  NodeId dsml(NodeId from);
  NodeId call(NodeId from, RuleId rule);
  template <class Piece>
  NodeId repeat(NodeId from, int64_t min, int64_t max, const Piece& piece) {
    return repeat_piece(*this, from, min, max, piece);
  }
  template <class Piece>
  NodeId optional(NodeId from, const Piece& piece) {
    return repeat(from, 0, 1, piece);
  }

  // A rule without content yet; the first one is the grammar.
  RuleId declare();
  NodeId begin(RuleId rule) const { return automaton_.rules[static_cast<size_t>(rule)]; }
  void end(NodeId last) { automaton_.nodes[static_cast<size_t>(last)].accepts = true; }

  // Without what leads to no whole text. kBadInput where a rule can call itself before it reads a
  // symbol, and where the grammar has no text at all.
  Automaton finish();

 private:
  void count_edge();
  void check_left_recursion() const;
  void drop_dead_ends();

  Automaton automaton_;
  size_t edges_ = 0;
};

// A text of one grammar or of the other.
Automaton either(Automaton first, const Automaton& second);

}  // namespace dsv4
