// Numbers of JSON within bounds, as automata over their decimal digits: exact for bounds of any
// size and any number of decimals, since digits are compared and nothing is rounded.
//
//   low <= x <= high (either may be excluded), x a multiple of each of `multiples`
//
// What it does not do: exponents.

#pragma once

#include <optional>
#include <string>
#include <vector>

#include "dsv4/chat/json_value.h"
#include "dsv4/grammar/automaton.h"

namespace dsv4 {

// (-1)^negative * whole.fraction; no zeros at the outer ends, "0" for an empty whole part.
struct Decimal {
  bool negative = false;
  std::string whole = std::string(1, '0'), fraction;

  // Nothing where the value is no number, or has more than kMaxDigits digits.
  static std::optional<Decimal> of(const JsonValue& value);
  static constexpr int kMaxDigits = 400;

  bool is_zero() const { return fraction.empty() && whole.size() == 1 && whole[0] == '0'; }
  friend bool operator==(const Decimal&, const Decimal&) = default;
};

int compare(const Decimal& a, const Decimal& b);  // < 0, 0, > 0
// Whether x is a whole number of times `divisor`, which is not zero. Nothing: `divisor` has more
// than 9 digits that are not zeros.
std::optional<bool> is_multiple(const Decimal& x, const Decimal& divisor);

struct NumberBound {
  Decimal value;
  bool excluded = false;
};

struct NumberText {
  bool whole = false;    // no point
  bool unwhole = false;  // a digit that is not zero after the point
  std::optional<NumberBound> low, high;
  std::vector<Decimal> multiples;
};

// kBadInput where a multiple has too many digits.
NodeId add_number(AutomatonBuilder& builder, NodeId from, const NumberText& number);

}  // namespace dsv4
