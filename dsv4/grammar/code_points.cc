#include "dsv4/grammar/code_points.h"

#include <fmt/format.h>

#include <algorithm>

#include "dsv4/text/utf8.h"

namespace dsv4 {
namespace {

constexpr char32_t kMost = 0x10ffff;

// Adds the byte sequences between those of `first` and `last`, which have the same length: shared
// bytes, then the border of `first`, whole ranges, and the border of `last`.
void add_between(AutomatonBuilder& builder, NodeId from, std::string_view first,
                 std::string_view last, NodeId to) {
  const auto byte = [](std::string_view text) { return static_cast<unsigned char>(text[0]); };
  if (first.size() == 1) return builder.symbol_edge(from, byte_range(byte(first), byte(last)), to);
  const std::string low(first.size() - 1, '\x80'), high(first.size() - 1, '\xbf');
  const std::string_view first_rest = first.substr(1), last_rest = last.substr(1);
  const auto branch = [&](int begin, int end, std::string_view rest_first,
                          std::string_view rest_last) {
    if (begin > end) return;
    const NodeId next = builder.symbols(from, byte_range(begin, end));
    add_between(builder, next, rest_first, rest_last, to);
  };
  if (byte(first) == byte(last)) return branch(byte(first), byte(first), first_rest, last_rest);
  const bool from_low = first_rest == low, to_high = last_rest == high;
  if (!from_low) branch(byte(first), byte(first), first_rest, high);
  branch(byte(first) + (from_low ? 0 : 1), byte(last) - (to_high ? 0 : 1), low, high);
  if (!to_high) branch(byte(last), byte(last), low, last_rest);
}

std::string utf8(char32_t code_point) {
  std::string out;
  append_utf8(out, code_point);
  return out;
}

void add_range(AutomatonBuilder& builder, NodeId from, CodePoints::Range range, NodeId to) {
  // One call for each length in bytes.
  constexpr char32_t kLast[] = {0x7f, 0x7ff, 0xffff, kMost};
  for (const char32_t last : kLast) {
    if (range.first > range.last) return;
    if (range.first > last) continue;
    const char32_t end = std::min(last, range.last);
    add_between(builder, from, utf8(range.first), utf8(end), to);
    range.first = end + 1;
  }
}

}  // namespace

void CodePoints::add(char32_t first, char32_t last) {
  last = std::min(last, kMost);
  if (first > last) return;
  // Surrogates are no code points of text.
  if (first <= 0xdfff && last >= 0xd800) {
    if (first < 0xd800) add(first, 0xd7ff);
    if (last > 0xdfff) add(0xe000, last);
    return;
  }
  // The ranges that touch or overlap the new one become part of it.
  const auto begin = std::partition_point(
      ranges_.begin(), ranges_.end(), [&](const Range& range) { return range.last + 1 < first; });
  const auto end = std::partition_point(
      begin, ranges_.end(), [&](const Range& range) { return range.first <= last + 1; });
  if (begin == end) {
    ranges_.insert(begin, {first, last});
    return;
  }
  *begin = {std::min(first, begin->first), std::max(last, std::prev(end)->last)};
  ranges_.erase(begin + 1, end);
}

void CodePoints::add(const CodePoints& other) {
  for (const Range& range : other.ranges_) add(range.first, range.last);
}

CodePoints CodePoints::complement() const {
  CodePoints out;
  char32_t next = 0;
  for (const Range& range : ranges_) {
    if (range.first > next) out.add(next, range.first - 1);
    next = range.last + 1;
  }
  out.add(next, kMost);
  return out;
}

CodePoints CodePoints::without(const CodePoints& other) const {
  CodePoints either = complement();
  either.add(other);
  return either.complement();
}

bool CodePoints::contains(char32_t code_point) const {
  return std::any_of(ranges_.begin(), ranges_.end(), [&](const Range& range) {
    return range.first <= code_point && code_point <= range.last;
  });
}

NodeId add_utf8(AutomatonBuilder& builder, NodeId from, const CodePoints& set) {
  const NodeId to = builder.node();
  for (const CodePoints::Range& range : set.ranges()) add_range(builder, from, range, to);
  return to;
}

NodeId add_json_character(AutomatonBuilder& builder, NodeId from, const CodePoints& set) {
  CodePoints escaped(0, 0x1f);
  escaped.add('"', '"');
  escaped.add('\\', '\\');
  const NodeId to = add_utf8(builder, from, set.without(escaped));
  const auto spell = [&](const std::string& text) {
    builder.empty_edge(builder.literal(from, text), to);
  };
  for (const char c : {'"', '\\'}) {
    if (set.contains(static_cast<unsigned char>(c))) spell(std::string("\\") + c);
  }
  constexpr std::pair<char32_t, char> kShort[] = {
      {'\b', 'b'}, {'\f', 'f'}, {'\n', 'n'}, {'\r', 'r'}, {'\t', 't'}};
  for (char32_t control = 0; control < 0x20; ++control) {
    if (!set.contains(control)) continue;
    const auto found = std::find_if(std::begin(kShort), std::end(kShort),
                                    [&](const auto& entry) { return entry.first == control; });
    if (found != std::end(kShort)) {
      spell(std::string("\\") + found->second);
    } else {
      spell(fmt::format("\\u{:04x}", static_cast<uint32_t>(control)));
    }
  }
  return to;
}

}  // namespace dsv4
