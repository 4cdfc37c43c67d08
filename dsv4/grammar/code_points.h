// Sets of Unicode code points, and how they become bytes: as UTF-8, or as what stands inside a JSON
// string.

#pragma once

#include <cstdint>
#include <vector>

#include "dsv4/grammar/automaton.h"

namespace dsv4 {

// Sorted ranges that neither touch nor overlap, without surrogates.
class CodePoints {
 public:
  struct Range {
    char32_t first, last;
  };
  CodePoints() = default;
  CodePoints(char32_t first, char32_t last) { add(first, last); }

  void add(char32_t first, char32_t last);
  void add(const CodePoints& other);
  CodePoints complement() const;
  CodePoints without(const CodePoints& other) const;
  bool contains(char32_t code_point) const;
  bool empty() const { return ranges_.empty(); }
  const std::vector<Range>& ranges() const { return ranges_; }

 private:
  std::vector<Range> ranges_;
};

// One code point of the set as UTF-8.
NodeId add_utf8(AutomatonBuilder& builder, NodeId from, const CodePoints& set);

// One code point of the set inside a JSON string: `"` and `\` are escaped, control characters are
// \u00XX or one of the short escapes, everything else is itself.
NodeId add_json_character(AutomatonBuilder& builder, NodeId from, const CodePoints& set);

}  // namespace dsv4
