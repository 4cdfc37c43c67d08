// Regular sets of strings over code points: patterns, formats and sets of keys, and what is in some
// of them and not in others. A set becomes deterministic only as far as it is asked.
//
//   in(text) = every part that must hold accepts the text, and no part that must not does
//
// What it does not do: look-around, back-references, a minimal automaton.

#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "dsv4/grammar/automaton.h"
#include "dsv4/grammar/code_points.h"

namespace dsv4 {

// How the characters of a text are spelled in the grammar.
enum class RegexText { kRaw, kInsideJsonString };

// A nondeterministic automaton over code points. Some of its empty edges hold only before the first
// character, others only after the last one.
class TextNfa {
 public:
  using Node = int32_t;
  struct Edge {
    CodePoints set;
    Node target;
  };
  struct Edges {
    std::vector<Edge> reads;
    std::vector<Node> empty, at_begin, at_end;
  };

  Node node();
  void empty_edge(Node from, Node to) { edges(from).empty.push_back(to), count(); }
  void at_begin(Node from, Node to) { edges(from).at_begin.push_back(to), count(); }
  void at_end(Node from, Node to) { edges(from).at_end.push_back(to), count(); }
  Node read(Node from, const CodePoints& set);
  void read(Node from, const CodePoints& set, Node to);
  template <class Piece>
  Node repeat(Node from, int64_t min, int64_t max, const Piece& piece) {
    return repeat_piece(*this, from, min, max, piece);
  }
  // The exact text.
  Node literal(Node from, std::string_view text);

  const std::vector<Edges>& nodes() const { return nodes_; }
  Node first = 0, last = 0;

 private:
  Edges& edges(Node node) { return nodes_[static_cast<size_t>(node)]; }
  void count();

  std::vector<Edges> nodes_;
  size_t edges_ = 0;
};

// The texts of an automaton, deterministic: states are made when they are reached.
class TextDfa {
 public:
  using State = int32_t;
  static constexpr State kDead = -1;
  struct Step {
    CodePoints set;
    State target;
  };

  explicit TextDfa(TextNfa nfa);
  // Exactly these texts.
  static std::shared_ptr<TextDfa> of_texts(const std::vector<std::string>& texts);

  const TextNfa& nfa() const { return nfa_; }
  State start() const { return start_; }  // kDead where there is no text at all
  bool accepts(State state) const { return accepting_[static_cast<size_t>(state)]; }
  // The sets do not overlap; a character in none of them leads to kDead. kBadInput past
  // kMaxTextStates states.
  const std::vector<Step>& steps(State state);
  bool contains(std::string_view text);

 private:
  // A node and where in the text it is: before the first character, after the last one.
  struct Item {
    TextNfa::Node node;
    bool fresh, ended;
    friend auto operator<=>(const Item&, const Item&) = default;
  };
  State intern(std::vector<Item> items);
  std::vector<Step> compute(State state);

  const TextNfa nfa_;
  State start_ = kDead;
  std::map<std::vector<Item>, State> ids_;
  std::vector<std::vector<Item>> items_;
  std::vector<bool> accepting_;
  std::vector<std::optional<std::vector<Step>>> steps_;
};

inline constexpr size_t kMaxTextStates = 20'000 / kLimitsBy;

struct TextPart {
  std::shared_ptr<TextDfa> texts;
  std::optional<bool> wanted;  // in or not in the set; nothing: either, which the end shows
  friend auto operator<=>(const TextPart&, const TextPart&) = default;
};

// Adds the texts of `min` to `max` characters that have all parts as wanted. Of each combination of
// "in" and "not in" over the parts, where it ends.
class TextWriter {
 public:
  TextWriter(AutomatonBuilder& builder, RegexText text) : builder_(builder), text_(text) {}

  std::map<std::vector<bool>, NodeId> add(NodeId from, const std::vector<TextPart>& parts,
                                          int64_t min = 0,
                                          std::optional<int64_t> max = std::nullopt);
  NodeId add_one(NodeId from, const std::vector<TextPart>& parts, int64_t min = 0,
                 std::optional<int64_t> max = std::nullopt);
  // Without making it deterministic.
  NodeId add(NodeId from, const TextNfa& nfa);

 private:
  // How a set of characters is read: its bytes that stand for themselves, and a rule for the rest.
  struct Spelled {
    SymbolSet plain;
    std::optional<RuleId> rest;
  };
  // What the parts read next: characters that lead all of them to the same states.
  struct Step {
    std::vector<TextDfa::State> states;  // [part]
    Spelled set;
  };
  Spelled spelled(const CodePoints& set);
  void read(NodeId from, const Spelled& set, NodeId to);
  std::vector<Step> steps(const std::vector<TextPart>& parts,
                          const std::vector<TextDfa::State>& states);

  AutomatonBuilder& builder_;
  const RegexText text_;
  std::map<std::vector<std::pair<char32_t, char32_t>>, RuleId> rules_;  // of sets of characters
};

}  // namespace dsv4
