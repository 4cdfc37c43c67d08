#include "dsv4/grammar/ebnf_grammar.h"

#include <algorithm>
#include <map>
#include <vector>

#include "dsv4/base/error.h"
#include "dsv4/base/quote.h"
#include "dsv4/chat/request_error.h"
#include "dsv4/grammar/code_points.h"
#include "dsv4/text/utf8.h"

namespace dsv4 {
namespace {

constexpr size_t kMaxText = 64 << 10;
constexpr int kMaxDepth = 100;
constexpr int64_t kMaxRepeat = 10'000;

struct Item;
using Sequence = std::vector<Item>;
using Alternatives = std::vector<Sequence>;

struct Item {
  enum class Kind { kText, kSet, kRule, kGroup } kind = Kind::kText;
  std::string text;          // kText: bytes; kRule: a name
  CodePoints set;            // kSet
  Alternatives group;        // kGroup
  int64_t min = 1, max = 1;  // -1: any number
  int line = 0;
};

struct Rule {
  std::string name;
  Alternatives body;
};

class EbnfReader {
 public:
  explicit EbnfReader(std::string_view text) : text_(text) {
    if (text.size() > kMaxText)
      fail(ErrorCode::kBadInput, "grammar: longer than {} bytes", kMaxText);
    if (valid_utf8_prefix(text) != text.size())
      fail(ErrorCode::kBadInput, "grammar: not valid UTF-8");
  }

  std::vector<Rule> run() {
    std::vector<Rule> rules;
    for (skip(); at_ < text_.size(); skip()) {
      Rule rule{.name = name()};
      if (rule.name.empty()) bad("want a rule, NAME ::= ...");
      skip();
      if (!take("::=")) bad("want ::= after the name of a rule");
      rule.body = alternatives(0);
      rules.push_back(std::move(rule));
    }
    return rules;
  }

 private:
  [[noreturn]] void bad(const std::string& what) {
    fail(ErrorCode::kBadInput, "grammar: line {}: {}", line(), what);
  }
  int line() {
    const std::string_view next = text_.substr(counted_, at_ - counted_);
    line_ += static_cast<int>(std::count(next.begin(), next.end(), '\n'));
    counted_ = std::min(at_, text_.size());
    return line_;
  }
  char peek() const { return at_ < text_.size() ? text_[at_] : '\0'; }
  bool take(std::string_view word) {
    if (!text_.substr(at_).starts_with(word)) return false;
    at_ += word.size();
    return true;
  }
  // White space, line ends and comments.
  void skip() {
    while (at_ < text_.size()) {
      if (peek() == '#') {
        at_ = std::min(text_.find('\n', at_), text_.size());
      } else if (std::string_view(" \t\r\n").find(peek()) != std::string_view::npos) {
        ++at_;
      } else {
        return;
      }
    }
  }
  std::string name() {
    const size_t begin = at_;
    const auto fits = [](char c) {
      return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
             c == '_' || c == '-';
    };
    while (at_ < text_.size() && fits(text_[at_])) ++at_;
    return std::string(text_.substr(begin, at_ - begin));
  }
  bool rule_begins() {
    const size_t here = at_;
    const bool named = !name().empty();
    skip();
    const bool begins = named && text_.substr(at_).starts_with("::=");
    at_ = here;
    return begins;
  }

  Alternatives alternatives(int depth) {
    if (depth > kMaxDepth) bad(fmt::format("nested deeper than {} levels", kMaxDepth));
    Alternatives all;
    do {
      all.push_back(sequence(depth));
    } while (take("|"));
    return all;
  }
  Sequence sequence(int depth) {
    Sequence items;
    for (skip(); at_ < text_.size() && peek() != '|' && peek() != ')' && !rule_begins(); skip()) {
      Item one = item(depth);
      // An empty text adds no node, so no limit would end its repetitions.
      if (one.kind != Item::Kind::kText || !one.text.empty()) items.push_back(std::move(one));
    }
    return items;
  }
  Item item(int depth) {
    Item one{.line = line()};
    if (peek() == '"' || peek() == '\'') {
      const char quote = text_[at_++];
      while (peek() != quote) append_utf8(one.text, character());
      ++at_;
    } else if (peek() == '[') {
      one.kind = Item::Kind::kSet;
      one.set = set();
    } else if (take(".")) {
      one.kind = Item::Kind::kSet;
      one.set = CodePoints(0, 0x10ffff);
    } else if (take("(")) {
      one.kind = Item::Kind::kGroup;
      one.group = alternatives(depth + 1);
      if (!take(")")) bad("a group without )");
    } else {
      one.kind = Item::Kind::kRule;
      one.text = name();
      if (one.text.empty()) bad(fmt::format("'{}' cannot stand here", peek()));
    }
    repetition(one);
    return one;
  }
  void repetition(Item& one) {
    if (take("*")) {
      one.min = 0, one.max = -1;
    } else if (take("+")) {
      one.max = -1;
    } else if (take("?")) {
      one.min = 0;
    } else if (take("{")) {
      one.min = one.max = number();
      if (take(",")) one.max = peek() == '}' ? -1 : number();
      if (!take("}")) bad("want {COUNT}, {LEAST,} or {LEAST,MOST}");
      if (one.max >= 0 && one.max < one.min) bad("a repetition of at most fewer than at least");
    }
  }
  int64_t number() {
    int64_t value = 0;
    const size_t begin = at_;
    while (peek() >= '0' && peek() <= '9' && value <= kMaxRepeat)
      value = value * 10 + (text_[at_++] - '0');
    if (at_ == begin || value > kMaxRepeat) bad(fmt::format("want a count up to {}", kMaxRepeat));
    return value;
  }

  // One character of a text or set, escaped or not.
  char32_t character() {
    if (at_ >= text_.size() || peek() == '\n') bad("a text or set that does not end");
    if (peek() != '\\') {
      const auto size = static_cast<size_t>(next_utf8(text_.substr(at_)).size);
      at_ += size;
      return decode_utf8(text_.substr(at_ - size, size));
    }
    ++at_;
    const char c = peek();
    ++at_;
    switch (c) {
      case 'n':
        return '\n';
      case 'r':
        return '\r';
      case 't':
        return '\t';
      case 'x':
        return hex(2);
      case 'u':
        return hex(4);
      case 'U':
        return hex(8);
      default:
        if (std::string_view("\\\"'[]-^").find(c) == std::string_view::npos || c == '\0')
          bad("an escape that does not exist");
        return static_cast<char32_t>(c);
    }
  }
  char32_t hex(int digits) {
    char32_t value = 0;
    for (int i = 0; i < digits; ++i, ++at_) {
      const char c = peek();
      const int digit = c >= '0' && c <= '9'   ? c - '0'
                        : c >= 'a' && c <= 'f' ? c - 'a' + 10
                        : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                               : -1;
      if (digit < 0) bad(fmt::format("want {} hexadecimal digits", digits));
      value = value * 16 + static_cast<char32_t>(digit);
    }
    if (value > 0x10ffff || (value >= 0xd800 && value < 0xe000)) bad("not a character of Unicode");
    return value;
  }
  CodePoints set() {
    ++at_;  // [
    const bool inverted = take("^");
    CodePoints out;
    while (peek() != ']') {
      const char32_t first = character();
      char32_t last = first;
      if (peek() == '-' && at_ + 1 < text_.size() && text_[at_ + 1] != ']') {
        ++at_;
        last = character();
      }
      if (last < first) bad("a range of a set that ends before it begins");
      out.add(first, last);
    }
    ++at_;
    if (inverted) out = out.complement();
    if (out.empty()) bad("an empty set");
    return out;
  }

  const std::string_view text_;
  size_t at_ = 0;
  int line_ = 1;        // of the byte counted_
  size_t counted_ = 0;  // at most at_
};

class EbnfBuilder {
 public:
  explicit EbnfBuilder(const std::vector<Rule>& rules) {
    const auto root = std::find_if(rules.begin(), rules.end(),
                                   [](const Rule& rule) { return rule.name == "root"; });
    if (root == rules.end()) fail(ErrorCode::kBadInput, "grammar: no rule is named root");
    declare(*root);  // the first one is the grammar
    for (const Rule& rule : rules) {
      if (&rule != &*root) declare(rule);
    }
    for (const Rule& rule : rules) {
      const RuleId id = ids_.at(rule.name);
      builder_.end(add(builder_.begin(id), rule.body));
    }
  }
  Automaton finish() { return builder_.finish(); }

 private:
  void declare(const Rule& rule) {
    if (!ids_.emplace(rule.name, builder_.declare()).second)
      fail(ErrorCode::kBadInput, "grammar: two rules are named {}", quotable(rule.name));
  }
  NodeId add(NodeId from, const Alternatives& all) {
    const NodeId end = builder_.node();
    for (const Sequence& sequence : all) {
      NodeId at = from;
      for (const Item& item : sequence) {
        at = builder_.repeat(at, item.min, item.max,
                             [&](NodeId node) { return add_once(node, item); });
      }
      builder_.empty_edge(at, end);
    }
    return end;
  }
  NodeId add_once(NodeId from, const Item& item) {
    switch (item.kind) {
      case Item::Kind::kText:
        return builder_.literal(from, item.text);
      case Item::Kind::kSet:
        return add_utf8(builder_, from, item.set);
      case Item::Kind::kGroup:
        return add(from, item.group);
      case Item::Kind::kRule:
        break;
    }
    const auto rule = ids_.find(item.text);
    if (rule == ids_.end())
      fail(ErrorCode::kBadInput, "grammar: line {}: no rule is named {}", item.line,
           quotable(item.text));
    return builder_.call(from, rule->second);
  }

  AutomatonBuilder builder_;
  std::map<std::string, RuleId> ids_;
};

}  // namespace

Automaton ebnf_grammar(std::string_view text) {
  return EbnfBuilder(EbnfReader(text).run()).finish();
}

Automaton ebnf_format_grammar(std::string_view text, const std::string& param) {
  try {
    return ebnf_grammar(text);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kBadInput) throw;
    throw RequestError("unsupported_grammar", param, fmt::format("{}: {}", param, error.what()));
  }
}

}  // namespace dsv4
