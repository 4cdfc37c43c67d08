#include "dsv4/grammar/text_set.h"

#include <algorithm>
#include <array>

#include "dsv4/base/error.h"
#include "dsv4/text/utf8.h"

namespace dsv4 {
namespace {

const CodePoints& any_character() {
  static const CodePoints all(0, 0x10ffff);
  return all;
}

// The ranges of several steps, cut so that none overlaps another: for each piece, which steps read
// it.
template <class Read>
void for_pieces(const std::vector<std::vector<CodePoints::Range>>& sets, const Read& read) {
  std::vector<char32_t> cuts;
  for (const auto& set : sets) {
    for (const CodePoints::Range& range : set)
      cuts.push_back(range.first), cuts.push_back(range.last + 1);
  }
  std::sort(cuts.begin(), cuts.end());
  cuts.erase(std::unique(cuts.begin(), cuts.end()), cuts.end());
  std::vector<size_t> next(sets.size());  // the first range that does not end before the piece
  for (size_t i = 0; i + 1 < cuts.size(); ++i) {
    std::vector<size_t> readers;
    for (size_t set = 0; set < sets.size(); ++set) {
      while (next[set] < sets[set].size() && sets[set][next[set]].last < cuts[i]) ++next[set];
      if (next[set] < sets[set].size() && sets[set][next[set]].first <= cuts[i])
        readers.push_back(set);
    }
    if (!readers.empty()) read(cuts[i], cuts[i + 1] - 1, readers);
  }
}

}  // namespace

void TextNfa::count() {
  if (++edges_ > AutomatonBuilder::kMaxEdges)
    fail(ErrorCode::kBadInput, "the grammar is too large: more than {} edges",
         AutomatonBuilder::kMaxEdges);
}

TextNfa::Node TextNfa::node() {
  if (nodes_.size() >= AutomatonBuilder::kMaxNodes)
    fail(ErrorCode::kBadInput, "the grammar is too large: more than {} nodes",
         AutomatonBuilder::kMaxNodes);
  nodes_.emplace_back();
  return static_cast<Node>(nodes_.size() - 1);
}

TextNfa::Node TextNfa::read(Node from, const CodePoints& set) {
  const Node to = node();
  read(from, set, to);
  return to;
}

void TextNfa::read(Node from, const CodePoints& set, Node to) {
  count();
  edges(from).reads.push_back({set, to});
}

TextNfa::Node TextNfa::literal(Node from, std::string_view text) {
  for (size_t i = 0; i < text.size();) {
    const auto size = static_cast<size_t>(next_utf8(text.substr(i)).size);
    const char32_t c = decode_utf8(text.substr(i, size));
    from = read(from, {c, c});
    i += size;
  }
  return from;
}

TextDfa::TextDfa(TextNfa nfa) : nfa_(std::move(nfa)) {
  start_ = intern({{nfa_.first, true, false}});
}

std::shared_ptr<TextDfa> TextDfa::of_texts(const std::vector<std::string>& texts) {
  std::vector<std::string> sorted = texts;
  std::sort(sorted.begin(), sorted.end());
  TextNfa nfa;
  nfa.first = nfa.node();
  nfa.last = nfa.node();
  // Texts that begin alike share nodes, so that little is left to determinize.
  std::vector<TextNfa::Node> path = {nfa.first};  // [bytes] of the previous text
  std::string previous;
  for (const std::string& text : sorted) {
    size_t shared = 0, at = 0;
    while (shared < std::min(text.size(), previous.size()) && text[shared] == previous[shared])
      ++shared;
    while (at < shared) {
      const auto size = static_cast<size_t>(next_utf8(std::string_view(text).substr(at)).size);
      if (at + size > shared) break;
      at += size;
    }
    path.resize(text.size() + 1);
    while (at < text.size()) {
      const auto size = static_cast<size_t>(next_utf8(std::string_view(text).substr(at)).size);
      path[at + size] = nfa.literal(path[at], std::string_view(text).substr(at, size));
      at += size;
    }
    nfa.empty_edge(path[text.size()], nfa.last);
    previous = text;
  }
  return std::make_shared<TextDfa>(std::move(nfa));
}

// With everything that can be reached without a character.
TextDfa::State TextDfa::intern(std::vector<Item> items) {
  std::vector<Item> todo = items;
  items.clear();
  std::map<Item, bool> seen;
  while (!todo.empty()) {
    const Item at = todo.back();
    todo.pop_back();
    if (!seen.emplace(at, true).second) continue;
    const TextNfa::Edges& edges = nfa_.nodes()[static_cast<size_t>(at.node)];
    for (const TextNfa::Node to : edges.empty) todo.push_back({to, at.fresh, at.ended});
    for (const TextNfa::Node to : edges.at_end) todo.push_back({to, at.fresh, true});
    if (!at.fresh) continue;
    for (const TextNfa::Node to : edges.at_begin) todo.push_back({to, true, at.ended});
  }
  bool accepting = false;
  for (const auto& [item, unused] : seen) {
    accepting = accepting || item.node == nfa_.last;
    // Only these matter from here on.
    if (!item.ended && !nfa_.nodes()[static_cast<size_t>(item.node)].reads.empty())
      items.push_back({item.node, false, false});
  }
  std::sort(items.begin(), items.end());
  items.erase(std::unique(items.begin(), items.end()), items.end());
  if (items.empty() && !accepting) return kDead;
  std::vector<Item> key = items;
  if (accepting) key.push_back({-1, false, false});
  const auto [known, is_new] = ids_.emplace(std::move(key), static_cast<State>(items_.size()));
  if (!is_new) return known->second;
  if (items_.size() >= kMaxTextStates)
    fail(ErrorCode::kBadInput, "the pattern is too large: more than {} states", kMaxTextStates);
  items_.push_back(std::move(items));
  accepting_.push_back(accepting);
  steps_.emplace_back();
  return known->second;
}

const std::vector<TextDfa::Step>& TextDfa::steps(State state) {
  if (!steps_[static_cast<size_t>(state)]) {
    std::vector<Step> computed = compute(state);
    steps_[static_cast<size_t>(state)] = std::move(computed);
  }
  return *steps_[static_cast<size_t>(state)];
}

std::vector<TextDfa::Step> TextDfa::compute(State state) {
  std::vector<std::vector<CodePoints::Range>> sets;
  std::vector<TextNfa::Node> targets;
  for (const Item& item : items_[static_cast<size_t>(state)]) {
    for (const TextNfa::Edge& edge : nfa_.nodes()[static_cast<size_t>(item.node)].reads) {
      sets.push_back(edge.set.ranges());
      targets.push_back(edge.target);
    }
  }
  std::map<std::vector<size_t>, CodePoints> pieces;
  for_pieces(sets, [&](char32_t first, char32_t last, const std::vector<size_t>& readers) {
    pieces[readers].add(first, last);
  });
  std::map<State, CodePoints> by_target;
  for (const auto& [readers, set] : pieces) {
    std::vector<Item> items;
    for (const size_t reader : readers) items.push_back({targets[reader], false, false});
    const State target = intern(std::move(items));
    if (target != kDead) by_target[target].add(set);
  }
  std::vector<Step> steps;
  for (auto& [target, set] : by_target) steps.push_back({std::move(set), target});
  return steps;
}

bool TextDfa::contains(std::string_view text) {
  State state = start();
  if (state == kDead) return false;
  for (size_t i = 0; i < text.size();) {
    const auto size = static_cast<size_t>(next_utf8(text.substr(i)).size);
    const char32_t c = decode_utf8(text.substr(i, size));
    i += size;
    const std::vector<Step>& all = steps(state);
    const auto found = std::find_if(all.begin(), all.end(),
                                    [&](const Step& step) { return step.set.contains(c); });
    if (found == all.end()) return false;
    state = found->target;
  }
  return accepts(state);
}

TextWriter::Spelled TextWriter::spelled(const CodePoints& set) {
  const bool raw = text_ == RegexText::kRaw;
  Spelled out;
  CodePoints rest;
  for (const CodePoints::Range& range : set.ranges()) {
    const char32_t most = std::min<char32_t>(range.last, 0x7f);
    for (char32_t c = range.first; c <= most; ++c) {
      if (raw || (c >= 0x20 && c != '"' && c != '\\')) {
        out.plain.set(c);
      } else {
        rest.add(c, c);
      }
    }
    if (range.last > 0x7f) rest.add(std::max<char32_t>(range.first, 0x80), range.last);
  }
  if (rest.empty()) return out;
  // What takes many nodes is one rule for all places that read it.
  std::vector<std::pair<char32_t, char32_t>> key;
  for (const CodePoints::Range& range : rest.ranges()) key.emplace_back(range.first, range.last);
  const auto [rule, is_new] = rules_.try_emplace(std::move(key));
  if (is_new) {
    rule->second = builder_.declare();
    const NodeId begin = builder_.begin(rule->second);
    builder_.end(raw ? add_utf8(builder_, begin, rest) : add_json_character(builder_, begin, rest));
  }
  out.rest = rule->second;
  return out;
}

void TextWriter::read(NodeId from, const Spelled& set, NodeId to) {
  if (set.plain.any()) builder_.symbol_edge(from, set.plain, to);
  if (set.rest) builder_.empty_edge(builder_.call(from, *set.rest), to);
}

// The pieces of all characters that the parts read alike.
std::vector<TextWriter::Step> TextWriter::steps(const std::vector<TextPart>& parts,
                                                const std::vector<TextDfa::State>& states) {
  std::vector<std::vector<CodePoints::Range>> sets = {any_character().ranges()};
  std::vector<std::pair<size_t, TextDfa::State>> readers_of = {{parts.size(), 0}};
  for (size_t i = 0; i < parts.size(); ++i) {
    if (states[i] == TextDfa::kDead) continue;
    for (const TextDfa::Step& step : parts[i].texts->steps(states[i])) {
      sets.push_back(step.set.ranges());
      readers_of.emplace_back(i, step.target);
    }
  }
  std::map<std::vector<TextDfa::State>, CodePoints> next;
  for_pieces(sets, [&](char32_t begin, char32_t end, const std::vector<size_t>& readers) {
    if (readers.front() != 0) return;  // surrogates
    std::vector<TextDfa::State> to(parts.size(), TextDfa::kDead);
    for (const size_t reader : readers) {
      const auto& [part, target] = readers_of[reader];
      if (part < parts.size()) to[part] = target;
    }
    for (size_t i = 0; i < parts.size(); ++i)
      if (to[i] == TextDfa::kDead && parts[i].wanted.value_or(false)) return;
    next[std::move(to)].add(begin, end);
  });
  std::vector<Step> steps;
  for (const auto& [to, set] : next) steps.push_back({to, spelled(set)});
  return steps;
}

std::map<std::vector<bool>, NodeId> TextWriter::add(NodeId from, const std::vector<TextPart>& parts,
                                                    int64_t min, std::optional<int64_t> max) {
  struct Place {
    std::vector<TextDfa::State> states;  // [part]
    int64_t length;                      // up to `most`
    auto operator<=>(const Place&) const = default;
  };
  const int64_t most = max.value_or(min);
  std::map<Place, NodeId> nodes;
  std::vector<std::pair<Place, NodeId>> todo;
  std::map<std::vector<bool>, NodeId> ends;
  // What follows depends on the length only where a text may end: a pattern beside a length has
  // each of its states many times.
  std::map<std::vector<TextDfa::State>, std::vector<Step>> known_steps;
  const auto node_of = [&](const Place& place) {
    const auto [known, is_new] = nodes.try_emplace(place);
    if (is_new) {
      if (nodes.size() > kMaxTextStates)
        fail(ErrorCode::kBadInput,
             "patterns and lengths together have more than {} states: a shorter maxLength or a "
             "simpler pattern has fewer",
             kMaxTextStates);
      known->second = builder_.node();
      todo.emplace_back(place, known->second);
    }
    return known->second;
  };
  Place first{{}, 0};
  for (const TextPart& part : parts) {
    first.states.push_back(part.texts->start());
    if (first.states.back() == TextDfa::kDead && part.wanted.value_or(false)) return ends;
  }
  builder_.empty_edge(from, node_of(first));
  while (!todo.empty()) {
    const auto [place, node] = std::move(todo.back());
    todo.pop_back();
    std::vector<bool> in;
    bool fits = place.length >= min;
    for (size_t i = 0; i < parts.size(); ++i) {
      in.push_back(place.states[i] != TextDfa::kDead && parts[i].texts->accepts(place.states[i]));
      fits = fits && parts[i].wanted.value_or(in[i]) == in[i];
    }
    if (fits) {
      const auto [end, is_new] = ends.try_emplace(in);
      if (is_new) end->second = builder_.node();
      builder_.empty_edge(node, end->second);
    }
    if (max && place.length == *max) continue;
    const auto [known, is_new] = known_steps.try_emplace(place.states);
    if (is_new) known->second = steps(parts, place.states);
    for (const Step& step : known->second)
      read(node, step.set, node_of({step.states, std::min(place.length + 1, most)}));
  }
  return ends;
}

NodeId TextWriter::add_one(NodeId from, const std::vector<TextPart>& parts, int64_t min,
                           std::optional<int64_t> max) {
  const NodeId end = builder_.node();
  for (const auto& [in, last] : add(from, parts, min, max)) builder_.empty_edge(last, end);
  return end;
}

NodeId TextWriter::add(NodeId from, const TextNfa& nfa) {
  // A node of the pattern stands for up to four: before the first character and after the last one
  // other edges hold.
  std::map<std::array<int, 3>, NodeId> nodes;
  std::vector<std::array<int, 3>> todo;
  const auto node_of = [&](TextNfa::Node node, int fresh, int ended) {
    const auto [known, is_new] = nodes.try_emplace({node, fresh, ended});
    if (is_new) {
      known->second = builder_.node();
      todo.push_back({node, fresh, ended});
    }
    return known->second;
  };
  const NodeId end = builder_.node();
  builder_.empty_edge(from, node_of(nfa.first, 1, 0));
  while (!todo.empty()) {
    const auto [node, fresh, ended] = todo.back();
    todo.pop_back();
    const NodeId at = nodes.at({node, fresh, ended});
    const TextNfa::Edges& edges = nfa.nodes()[static_cast<size_t>(node)];
    if (node == nfa.last) builder_.empty_edge(at, end);
    for (const auto to : edges.empty) builder_.empty_edge(at, node_of(to, fresh, ended));
    for (const auto to : edges.at_end) builder_.empty_edge(at, node_of(to, fresh, 1));
    if (fresh == 1)
      for (const auto to : edges.at_begin) builder_.empty_edge(at, node_of(to, 1, ended));
    if (ended == 1) continue;
    for (const TextNfa::Edge& edge : edges.reads)
      read(at, spelled(edge.set), node_of(edge.target, 0, 0));
  }
  return end;
}

}  // namespace dsv4
