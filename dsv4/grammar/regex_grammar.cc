#include "dsv4/grammar/regex_grammar.h"

#include <optional>
#include <unordered_map>
#include <vector>

#include "dsv4/base/error.h"
#include "dsv4/grammar/code_points.h"
#include "dsv4/text/utf8.h"

namespace dsv4 {
namespace {

constexpr size_t kMaxPattern = 16 << 10;
constexpr int kMaxDepth = 100;
constexpr int64_t kMaxRepeat = 10'000;

CodePoints digits() {
  return {'0', '9'};
}

CodePoints words() {
  CodePoints set('0', '9');
  set.add('A', 'Z');
  set.add('a', 'z');
  set.add('_', '_');
  return set;
}

CodePoints spaces() {
  CodePoints set('\t', '\r');
  for (const char32_t c : {U' ', U'\u00a0', U'\u1680', U'\u2028', U'\u2029', U'\u202f', U'\u205f',
                           U'\u3000', U'\ufeff'})
    set.add(c, c);
  set.add(0x2000, 0x200a);
  return set;
}

CodePoints line_ends() {
  CodePoints set('\n', '\n');
  set.add('\r', '\r');
  set.add(0x2028, 0x2029);
  return set;
}

// Reads the pattern twice where an atom is repeated: repeat() builds it anew from its text.
class RegexReader {
 public:
  explicit RegexReader(std::string_view pattern) : pattern_(pattern) {
    if (pattern.size() > kMaxPattern)
      fail(ErrorCode::kBadInput, "regex: longer than {} bytes", kMaxPattern);
    if (valid_utf8_prefix(pattern) != pattern.size())
      fail(ErrorCode::kBadInput, "regex: not valid UTF-8");
  }

  TextNfa run(RegexScope match) {
    const CodePoints any(0, 0x10ffff);
    const bool search = match == RegexScope::kSearch;
    nfa_.first = nfa_.node();
    NodeId from = nfa_.first;
    if (search) from = nfa_.repeat(from, 0, -1, [&](NodeId node) { return nfa_.read(node, any); });
    const NodeId end = alternatives(from);
    if (at_ < pattern_.size()) bad("unmatched )");
    nfa_.last =
        search ? nfa_.repeat(end, 0, -1, [&](NodeId node) { return nfa_.read(node, any); }) : end;
    return std::move(nfa_);
  }

 private:
  [[noreturn]] void bad(std::string_view what) const {
    fail(ErrorCode::kBadInput, "regex: {} at byte {}", what, at_);
  }
  bool more() const { return at_ < pattern_.size(); }
  char peek() const { return more() ? pattern_[at_] : '\0'; }
  bool take(char c) {
    if (!more() || pattern_[at_] != c) return false;
    ++at_;
    return true;
  }
  char32_t code_point() {
    const Utf8Unit unit = next_utf8(pattern_.substr(at_));
    const auto size = static_cast<size_t>(unit.size);
    const char32_t value = decode_utf8(pattern_.substr(at_, size));
    at_ += size;
    return value;
  }

  NodeId alternatives(NodeId from) {
    if (++depth_ > kMaxDepth) bad("nested too deep");
    const NodeId end = nfa_.node();
    do {
      nfa_.empty_edge(sequence(from), end);
    } while (take('|'));
    --depth_;
    return end;
  }

  NodeId sequence(NodeId from) {
    while (more() && peek() != '|' && peek() != ')') from = repeated(from);
    return from;
  }

  struct Repeat {
    int64_t min = 1, max = 1;
  };

  NodeId repeated(NodeId from) {
    const size_t begin = at_;
    skip_atom();
    const Repeat repeat = quantifier();
    const size_t end = at_;
    const auto piece = [&](NodeId node) {
      at_ = begin;
      return atom(node);
    };
    const NodeId last = nfa_.repeat(from, repeat.min, repeat.max, piece);
    at_ = end;
    return last;
  }

  Repeat quantifier() {
    Repeat repeat;
    if (take('*')) {
      repeat = {0, -1};
    } else if (take('+')) {
      repeat = {1, -1};
    } else if (take('?')) {
      repeat = {0, 1};
    } else if (peek() == '{') {
      ++at_;
      repeat = braces();
    } else {
      return repeat;
    }
    take('?');  // lazy: the same texts
    if (peek() == '*' || peek() == '+' || peek() == '?' || peek() == '{')
      bad("a quantifier after a quantifier");
    return repeat;
  }

  Repeat braces() {
    const int64_t min = integer();
    int64_t max = min;
    if (take(',')) max = peek() == '}' ? -1 : integer();
    if (!take('}')) bad("malformed {}");
    if (max >= 0 && max < min) bad("{} with its numbers out of order");
    return {min, max};
  }

  int64_t integer() {
    int64_t value = 0;
    const size_t begin = at_;
    while (peek() >= '0' && peek() <= '9' && value <= kMaxRepeat)
      value = value * 10 + (pattern_[at_++] - '0');
    if (at_ == begin) bad("malformed {}");
    if (value > kMaxRepeat) bad("more than 10000 repetitions");
    return value;
  }

  // Past one atom without building it.
  void skip_atom() {
    if (peek() == '\\') {
      escape();
      return;
    }
    if (peek() == '[') {
      bracket_here();
      return;
    }
    if (!take('(')) {
      code_point();
      return;
    }
    for (int open = 1; more() && open > 0;) {
      if (peek() == '(') {
        ++open;
        ++at_;
      } else if (peek() == ')') {
        --open;
        ++at_;
      } else {
        skip_atom();
      }
    }
  }

  NodeId atom(NodeId from) {
    switch (peek()) {
      case '^':
      case '$': {
        const NodeId to = nfa_.node();
        take('^') ? nfa_.at_begin(from, to) : (++at_, nfa_.at_end(from, to));
        return to;
      }
      case '(':
        return group(from);
      case '[':
        return characters(from, bracket_here());
      case '.':
        ++at_;
        return characters(from, line_ends().complement());
      case '\\':
        return characters(from, escape());
      case '*':
      case '+':
      case '?':
      case '{':
        bad("nothing to repeat");
      default: {
        const char32_t c = code_point();
        return characters(from, {c, c});
      }
    }
  }

  NodeId group(NodeId from) {
    ++at_;
    if (take('?') && !take(':')) bad("only (?: groups are supported");
    const NodeId end = alternatives(from);
    if (!take(')')) bad("missing )");
    return end;
  }

  NodeId characters(NodeId from, const CodePoints& set) {
    if (set.empty()) bad("an empty class");
    return nfa_.read(from, set);
  }

  // The class at this place, which is read once however often its atom is built.
  const CodePoints& bracket_here() {
    const auto [place, is_new] = brackets_.try_emplace(at_);
    Bracket& bracket = place->second;
    if (is_new) {
      bracket.set = read_bracket();
      bracket.end = at_;
    }
    at_ = bracket.end;
    return bracket.set;
  }

  CodePoints read_bracket() {
    ++at_;
    const bool negated = take('^');
    CodePoints set;
    while (more() && peek() != ']') {
      std::optional<char32_t> first;
      CodePoints piece = class_item(first);
      if (first && peek() == '-' && at_ + 1 < pattern_.size() && pattern_[at_ + 1] != ']') {
        ++at_;
        std::optional<char32_t> last;
        class_item(last);
        if (!last || *last < *first) bad("a class range out of order");
        piece = {*first, *last};
      }
      set.add(piece);
    }
    if (!take(']')) bad("missing ]");
    return negated ? set.complement() : set;
  }

  // `single` is set where the item is one code point.
  CodePoints class_item(std::optional<char32_t>& single) {
    if (peek() == '\\') {
      if (at_ + 1 < pattern_.size() && pattern_[at_ + 1] == 'b') {
        at_ += 2;
        single = '\b';
        return {'\b', '\b'};
      }
      CodePoints set = escape();
      const auto& ranges = set.ranges();
      if (ranges.size() == 1 && ranges[0].first == ranges[0].last) single = ranges[0].first;
      return set;
    }
    single = code_point();
    return {*single, *single};
  }

  CodePoints escape() {
    ++at_;
    if (!more()) bad("a pattern that ends with \\");
    const char32_t c = code_point();
    switch (c) {
      case 'd':
        return digits();
      case 'D':
        return digits().complement();
      case 'w':
        return words();
      case 'W':
        return words().complement();
      case 's':
        return spaces();
      case 'S':
        return spaces().complement();
      case 'n':
        return {'\n', '\n'};
      case 'r':
        return {'\r', '\r'};
      case 't':
        return {'\t', '\t'};
      case 'f':
        return {'\f', '\f'};
      case 'v':
        return {'\v', '\v'};
      case '0':
        return {0, 0};
      case 'x':
        return one(hex(2));
      case 'u':
        return one(unicode());
      default:
        break;
    }
    if ((c >= '1' && c <= '9') || (c < 0x80 && words().contains(c)))
      bad("an escape that is not supported");
    return {c, c};
  }

  static CodePoints one(char32_t c) { return {c, c}; }

  char32_t unicode() {
    if (!take('{')) return hex(4);
    const size_t close = pattern_.find('}', at_);
    if (close == pattern_.npos || close == at_ || close - at_ > 6) bad("malformed \\u{}");
    const char32_t value = hex(close - at_);
    ++at_;
    if (value > 0x10ffff) bad("malformed \\u{}");
    return value;
  }

  char32_t hex(size_t count) {
    char32_t value = 0;
    for (size_t i = 0; i < count; ++i) {
      const char c = peek();
      const int digit = c >= '0' && c <= '9'   ? c - '0'
                        : c >= 'a' && c <= 'f' ? c - 'a' + 10
                        : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                               : -1;
      if (digit < 0) bad("malformed hexadecimal escape");
      value = value * 16 + static_cast<char32_t>(digit);
      ++at_;
    }
    return value;
  }

  struct Bracket {
    CodePoints set;
    size_t end = 0;
  };

  TextNfa nfa_;
  std::string_view pattern_;
  size_t at_ = 0;
  int depth_ = 0;
  std::unordered_map<size_t, Bracket> brackets_;  // by the place of their [
};

}  // namespace

TextNfa read_regex(std::string_view pattern, RegexScope match) {
  return RegexReader(pattern).run(match);
}

NodeId add_regex(AutomatonBuilder& builder, NodeId from, std::string_view pattern, RegexText text) {
  return TextWriter(builder, text).add(from, read_regex(pattern, RegexScope::kWhole));
}

}  // namespace dsv4
