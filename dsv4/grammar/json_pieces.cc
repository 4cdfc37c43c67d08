#include "dsv4/grammar/json_pieces.h"

#include <map>
#include <memory>

#include "dsv4/base/error.h"
#include "dsv4/grammar/code_points.h"
#include "dsv4/text/utf8.h"

namespace dsv4 {
namespace {

constexpr int64_t kMostSpaces = 20;

SymbolSet digit(int first = 0, int last = 9) {
  return byte_range('0' + first, '0' + last);
}

SymbolSet hex() {
  return digit() | byte_range('a', 'f') | byte_range('A', 'F');
}

// Characters that a string holds without an escape.
CodePoints plain() {
  CodePoints set(0x20, 0x10ffff);
  CodePoints escaped('"', '"');
  escaped.add('\\', '\\');
  return set.without(escaped);
}

}  // namespace

NodeId JsonPieces::spaces(NodeId from) {
  if (spaces_ == JsonSpaces::kNone) return from;
  if (!spaces_rule_) {
    spaces_rule_ = builder_.declare();
    const NodeId line = builder_.optional(
        builder_.begin(*spaces_rule_), [&](NodeId node) { return builder_.literal(node, "\n"); });
    builder_.end(builder_.repeat(line, 0, kMostSpaces,
                                 [&](NodeId node) { return builder_.literal(node, " "); }));
  }
  return builder_.call(from, *spaces_rule_);
}

// One character of a string: itself, an escape, or \uXXXX, where two make a pair of surrogates.
RuleId JsonPieces::character() {
  if (character_) return *character_;
  character_ = builder_.declare();
  const NodeId from = builder_.begin(*character_);
  const NodeId end = add_utf8(builder_, from, plain());
  const NodeId escape = builder_.literal(from, "\\");
  SymbolSet shorts;
  for (const char c : std::string_view("\"\\/bfnrt")) shorts.set(static_cast<unsigned char>(c));
  builder_.symbol_edge(escape, shorts, end);
  const NodeId unicode = builder_.literal(escape, "u");
  const SymbolSet d = byte_range('d', 'd') | byte_range('D', 'D');
  const SymbolSet low = digit(8, 9) | byte_range('a', 'b') | byte_range('A', 'B');
  const SymbolSet high = byte_range('c', 'f') | byte_range('C', 'F');
  const auto hexes = [&](NodeId node, int count) {
    for (int i = 0; i < count; ++i) node = builder_.symbols(node, hex());
    return node;
  };
  builder_.empty_edge(hexes(builder_.symbols(unicode, hex() & ~d), 3), end);
  const NodeId after_d = builder_.symbols(unicode, d);
  builder_.empty_edge(hexes(builder_.symbols(after_d, digit(0, 7)), 2), end);
  const NodeId first = hexes(builder_.symbols(after_d, low), 2);
  const NodeId second = builder_.symbols(builder_.literal(first, "\\u"), d);
  builder_.empty_edge(hexes(builder_.symbols(second, high), 2), end);
  builder_.end(end);
  return *character_;
}

NodeId JsonPieces::string(NodeId from, int64_t min, int64_t max) {
  const RuleId one = character();
  const NodeId last = builder_.repeat(builder_.literal(from, "\""), min, max,
                                      [&](NodeId node) { return builder_.call(node, one); });
  return builder_.literal(last, "\"");
}

NodeId JsonPieces::other_key(NodeId from, const std::vector<std::string>& keys) {
  struct Branch {
    std::map<char32_t, std::unique_ptr<Branch>> next;
    bool is_key = false;
  };
  Branch root;
  for (const std::string& key : keys) {
    Branch* at = &root;
    for (size_t i = 0; i < key.size();) {
      const auto size = static_cast<size_t>(next_utf8(std::string_view(key).substr(i)).size);
      auto& next = at->next[decode_utf8(std::string_view(key).substr(i, size))];
      if (!next) next = std::make_unique<Branch>();
      at = next.get();
      i += size;
    }
    at->is_key = true;
  }
  // Once a character differs from every key, anything may follow. Most keys are ASCII, so the other
  // characters that a place may read are one set of bytes and nodes that all places share.
  constexpr char32_t kLastAscii = 0x7f;
  const CodePoints beyond_ascii(kLastAscii + 1, 0x10ffff);
  const NodeId free = builder_.node(), end = builder_.node(), beyond = builder_.node();
  builder_.empty_edge(add_utf8(builder_, free, plain()), free);
  builder_.empty_edge(builder_.literal(free, "\""), end);
  builder_.empty_edge(add_utf8(builder_, beyond, beyond_ascii), free);
  std::vector<std::pair<const Branch*, NodeId>> todo = {{&root, builder_.literal(from, "\"")}};
  while (!todo.empty()) {
    const auto [branch, node] = todo.back();
    todo.pop_back();
    if (!branch->is_key) builder_.empty_edge(builder_.literal(node, "\""), end);
    SymbolSet ascii = byte_range(0x20, kLastAscii);
    ascii.reset('"').reset('\\');
    CodePoints taken;
    for (const auto& [c, next] : branch->next) {
      if (c <= kLastAscii && !ascii[c]) continue;  // no key has it without an escape
      if (c <= kLastAscii) {
        ascii.reset(c);
      } else {
        taken.add(c, c);
      }
      todo.emplace_back(next.get(), add_utf8(builder_, node, CodePoints(c, c)));
    }
    builder_.symbol_edge(node, ascii, free);
    if (taken.empty()) {
      builder_.empty_edge(node, beyond);
    } else {
      builder_.empty_edge(add_utf8(builder_, node, beyond_ascii.without(taken)), free);
    }
  }
  return end;
}

NodeId JsonPieces::integer(NodeId from) {
  const NodeId sign = builder_.optional(from, [&](NodeId n) { return builder_.literal(n, "-"); });
  const NodeId end = builder_.literal(sign, "0");
  const NodeId more = builder_.repeat(builder_.symbols(sign, digit(1, 9)), 0, -1,
                                      [&](NodeId n) { return builder_.symbols(n, digit()); });
  builder_.empty_edge(more, end);
  return end;
}

NodeId JsonPieces::number(NodeId from) {
  const NodeId whole = fraction(integer(from));
  return builder_.optional(whole, [&](NodeId node) {
    const SymbolSet e = byte_range('e', 'e') | byte_range('E', 'E');
    const SymbolSet signs = byte_range('+', '+') | byte_range('-', '-');
    const NodeId sign = builder_.optional(builder_.symbols(node, e),
                                          [&](NodeId n) { return builder_.symbols(n, signs); });
    // An exponent of any length could leave the range of a double.
    return builder_.repeat(sign, 1, 2, [&](NodeId n) { return builder_.symbols(n, digit()); });
  });
}

NodeId JsonPieces::fraction(NodeId from) {
  return builder_.optional(from, [&](NodeId node) {
    return builder_.repeat(builder_.literal(node, "."), 1, -1,
                           [&](NodeId n) { return builder_.symbols(n, digit()); });
  });
}

RuleId JsonPieces::value_rule() {
  if (value_) return *value_;
  value_ = builder_.declare();
  const NodeId from = builder_.begin(*value_), end = builder_.node();
  for (const char* word : {"null", "true", "false"})
    builder_.empty_edge(builder_.literal(from, word), end);
  builder_.empty_edge(string(from), end);
  builder_.empty_edge(number(from), end);
  builder_.empty_edge(list(from, '[', ']', false), end);
  builder_.empty_edge(list(from, '{', '}', true), end);
  builder_.end(end);
  return *value_;
}

NodeId JsonPieces::list(NodeId from, char open, char close, bool with_keys) {
  const RuleId value = value_rule();
  const auto item = [&](NodeId node) {
    if (with_keys) node = spaces(builder_.literal(spaces(string(node)), ":"));
    return spaces(builder_.call(node, value));
  };
  const NodeId begin = spaces(builder_.literal(from, std::string(1, open)));
  const NodeId end = builder_.node();
  builder_.empty_edge(begin, end);
  const NodeId more = builder_.repeat(
      item(begin), 0, -1, [&](NodeId node) { return item(spaces(builder_.literal(node, ","))); });
  builder_.empty_edge(more, end);
  return builder_.literal(end, std::string(1, close));
}

NodeId JsonPieces::any_value(NodeId from) {
  return builder_.call(from, value_rule());
}

NodeId JsonPieces::any_object(NodeId from) {
  return list(from, '{', '}', true);
}

}  // namespace dsv4
