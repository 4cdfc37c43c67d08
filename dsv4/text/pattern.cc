#include "dsv4/text/pattern.h"

#include <cstdint>

#include "dsv4/base/error.h"
#include "dsv4/base/quote.h"
#include "dsv4/text/unicode_additions.h"

namespace dsv4 {
namespace {

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}
bool is_ascii_punctuation(char c) {
  return (c >= '!' && c <= '/') || (c >= ':' && c <= '@') || (c >= '[' && c <= '`') ||
         (c >= '{' && c <= '~');
}

class Translator {
 public:
  explicit Translator(std::string_view pattern) : pattern_(pattern) {}

  std::string run() {
    while (at_ < pattern_.size()) outside_class();
    return std::move(out_);
  }

 private:
  [[noreturn]] void reject(std::string_view what) const {
    fail(ErrorCode::kUnsupported, "pattern '{}', byte {}: {}", printable(pattern_, kMaxQuote), at_,
         what);
  }
  bool starts(std::string_view text) const { return pattern_.substr(at_).starts_with(text); }
  void copy(size_t count) {
    out_ += pattern_.substr(at_, count);
    at_ += count;
  }

  void outside_class() {
    switch (pattern_[at_]) {
      case '\\':
        return escape(false);
      case '[':
        return character_class();
      case '(':
        if (!starts("(?") && !starts("(*")) return copy(1);
        if (starts("(?:") || starts("(?=") || starts("(?!")) return copy(3);
        reject("of the groups starting with (? or (*, only (?: (?= (?! are supported");
      case '{':
        return repeat();
      case '^':
      case '$':
      case '.':
        reject("^ $ . are not supported: they depend on what counts as a line end");
      default:
        copy(1);
    }
  }

  // {n} {n,} {n,m}; a + or ? after it means something else in Ruby's syntax.
  void repeat() {
    size_t end = at_ + 1;
    if (end == pattern_.size() || !is_digit(pattern_[end]))
      reject("{ must start {n}, {n,} or {n,m}");
    while (end < pattern_.size() && (is_digit(pattern_[end]) || pattern_[end] == ',')) ++end;
    if (end == pattern_.size() || pattern_[end] != '}') reject("{ must start {n}, {n,} or {n,m}");
    copy(end + 1 - at_);
    if (starts("+") || starts("?")) reject("+ or ? after {...} is not supported");
  }

  void character_class() {
    copy(starts("[^") ? 2 : 1);
    if (starts("]")) reject("an empty character class");
    while (at_ < pattern_.size() && pattern_[at_] != ']') {
      if (starts("[")) reject("a [ inside a character class must be escaped");
      if (starts("&&")) reject("&& inside a character class is not supported");
      if (starts("\\")) {
        escape(true);
      } else {
        copy(1);
      }
    }
    if (at_ == pattern_.size()) reject("a character class without ]");
    copy(1);
  }

  void escape(bool in_class) {
    if (at_ + 1 == pattern_.size()) reject("ends with a backslash");
    const char kind = pattern_[at_ + 1];
    if (kind == 'p') return category(in_class);
    if (kind == 's' || kind == 'S') {
      out_ += kind == 's' ? "\\p{White_Space}" : "\\P{White_Space}";
      at_ += 2;
    } else if (kind == 'r' || kind == 'n' || kind == 't' || is_ascii_punctuation(kind)) {
      copy(2);
    } else {
      reject(fmt::format("the escape \\{} is not supported", kind));
    }
  }

  void category(bool in_class) {
    if (pattern_.size() - at_ < 5 || pattern_[at_ + 2] != '{' || pattern_[at_ + 4] != '}') {
      reject("of \\p{...} only \\p{L} \\p{M} \\p{N} \\p{P} \\p{S} are supported");
    }
    const char letter = pattern_[at_ + 3];
    if (!in_class) out_ += '[';
    copy(5);
    bool known = false;
    for (const UnicodeAddition& range : kUnicodeAdditions) {
      if (range.category != letter) continue;
      known = true;
      out_ += fmt::format("\\x{{{:x}}}-\\x{{{:x}}}", uint32_t{range.first}, uint32_t{range.last});
    }
    if (!known) reject("of \\p{...} only \\p{L} \\p{M} \\p{N} \\p{P} \\p{S} are supported");
    if (!in_class) out_ += ']';
  }

  std::string_view pattern_;
  size_t at_ = 0;
  std::string out_;
};

}  // namespace

std::string pcre2_pattern(std::string_view pattern) {
  return Translator(pattern).run();
}

}  // namespace dsv4
