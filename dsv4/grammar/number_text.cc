#include "dsv4/grammar/number_text.h"

#include <algorithm>
#include <charconv>
#include <map>

#include "dsv4/base/error.h"

namespace dsv4 {
namespace {

constexpr size_t kMaxStates = 50'000 / kLimitsBy;

// A divisor as units of 10^-decimals.
struct Divisor {
  int64_t units;
  int decimals;
};

std::optional<Divisor> divisor_of(const Decimal& value) {
  const std::string digits = value.whole + value.fraction;
  const size_t first = std::min(digits.find_first_not_of('0'), digits.size());
  if (digits.size() - first > 9 || first == digits.size()) return std::nullopt;
  return Divisor{std::stoll(digits.substr(first)), static_cast<int>(value.fraction.size())};
}

int64_t power_of_ten(int exponent, int64_t modulus) {
  int64_t out = 1 % modulus;
  for (int i = 0; i < exponent; ++i) out = out * 10 % modulus;
  return out;
}

// Reads the digits of a number without its sign, and compares them with a bound as they come.
class Comparison {
 public:
  explicit Comparison(Decimal bound) : bound_(std::move(bound)) {}

  // Digits read of the whole part (one more than the bound has: any larger number), or of the
  // fraction, and how what was read compares.
  struct State {
    int whole = 0, fraction = -1, order = 0;
    auto operator<=>(const State&) const = default;
  };
  State digit(State state, char c) const {
    const auto place = static_cast<size_t>(state.fraction < 0 ? state.whole : state.fraction);
    const std::string& digits = state.fraction < 0 ? bound_.whole : bound_.fraction;
    const char mine = place < digits.size() ? digits[place] : '0';
    if (state.order == 0 && (state.fraction >= 0 || place < digits.size()))
      state.order = (c > mine) - (c < mine);
    int& count = state.fraction < 0 ? state.whole : state.fraction;
    count = std::min(count + 1, static_cast<int>(digits.size()) + (state.fraction < 0 ? 1 : 0));
    return state;
  }
  State point(State state) const {
    state.order = of_whole(state);
    // What follows decides only where everything before it is equal.
    return {0, 0, state.order};
  }
  int result(State state) const {
    const int order = state.fraction < 0 ? of_whole(state) : state.order;
    const auto read = static_cast<size_t>(std::max(state.fraction, 0));
    const bool more = bound_.fraction.find_first_not_of('0', read) != bound_.fraction.npos;
    return order == 0 && more ? -1 : order;
  }

 private:
  int of_whole(State state) const {
    const int size = static_cast<int>(bound_.whole.size());
    return state.whole < size ? -1 : state.whole > size ? 1 : state.order;
  }
  Decimal bound_;
};

struct Magnitude {
  std::optional<NumberBound> low, high;  // without signs
};

class NumberWriter {
 public:
  NumberWriter(AutomatonBuilder& builder, const NumberText& number)
      : builder_(builder), number_(number) {
    for (const Decimal& one : number.multiples) {
      const auto divisor = divisor_of(one);
      if (!divisor)
        fail(ErrorCode::kBadInput, "multipleOf must be above 0 and have at most 9 digits");
      divisors_.push_back(*divisor);
    }
  }

  // The digits of the numbers between the bounds; a zero only where `zero` says so.
  void add(NodeId from, const Magnitude& range, bool zero, NodeId end) {
    low_.reset(), high_.reset();
    if (range.low) low_.emplace(range.low->value);
    if (range.high) high_.emplace(range.high->value);
    nodes_.clear();
    State first;
    first.rest.assign(divisors_.size(), 0);
    builder_.empty_edge(from, node_of(first));
    while (!todo_.empty()) {
      const auto [state, node] = std::move(todo_.back());
      todo_.pop_back();
      if (fits(state, range, zero)) builder_.empty_edge(node, end);
      visit(state, node);
    }
  }

 private:
  enum Stage { kBegin, kZero, kWhole, kPoint, kFraction };
  struct State {
    int stage = kBegin, decimals = 0;
    bool nonzero = false, nonzero_fraction = false;
    Comparison::State low, high;
    std::vector<int64_t> rest;  // [divisor] of what was read
    auto operator<=>(const State&) const = default;
  };

  NodeId node_of(const State& state) {
    const auto [known, is_new] = nodes_.try_emplace(state);
    if (is_new) {
      if (nodes_.size() > kMaxStates)
        fail(ErrorCode::kBadInput, "multipleOf and bounds together have more than {} states",
             kMaxStates);
      known->second = builder_.node();
      todo_.emplace_back(state, known->second);
    }
    return known->second;
  }

  void visit(const State& state, NodeId node) {
    std::map<NodeId, SymbolSet> targets;
    for (char c = '0'; c <= '9'; ++c) {
      if (const auto next = digit(state, c)) targets[node_of(*next)].set(static_cast<size_t>(c));
    }
    const bool whole = state.stage == kZero || state.stage == kWhole;
    if (whole && !number_.whole) {
      State next = state;
      next.stage = kPoint;
      if (low_) next.low = low_->point(state.low);
      if (high_) next.high = high_->point(state.high);
      targets[node_of(next)].set('.');
    }
    for (const auto& [target, symbols] : targets) builder_.symbol_edge(node, symbols, target);
  }

  std::optional<State> digit(const State& state, char c) const {
    if (state.stage == kZero) return std::nullopt;
    State next = state;
    const bool fraction = state.stage == kPoint || state.stage == kFraction;
    next.stage = fraction ? kFraction : state.stage == kBegin && c == '0' ? kZero : kWhole;
    next.nonzero = state.nonzero || c != '0';
    next.nonzero_fraction = number_.unwhole && (state.nonzero_fraction || (fraction && c != '0'));
    if (low_) next.low = low_->digit(state.low, c);
    if (high_) next.high = high_->digit(state.high, c);
    int most = 0;
    for (const Divisor& divisor : divisors_) most = std::max(most, divisor.decimals);
    for (size_t i = 0; i < divisors_.size(); ++i) {
      if (fraction && state.decimals >= divisors_[i].decimals) {
        if (c != '0') return std::nullopt;
      } else {
        next.rest[i] = (state.rest[i] * 10 + (c - '0')) % divisors_[i].units;
      }
    }
    if (fraction) next.decimals = std::min(state.decimals + 1, most);
    return next;
  }

  bool fits(const State& state, const Magnitude& range, bool zero) const {
    if (state.stage == kBegin || state.stage == kPoint) return false;
    if ((!state.nonzero && !zero) || (number_.unwhole && !state.nonzero_fraction)) return false;
    if (low_) {
      const int order = low_->result(state.low);
      if (order < 0 || (order == 0 && range.low->excluded)) return false;
    }
    if (high_) {
      const int order = high_->result(state.high);
      if (order > 0 || (order == 0 && range.high->excluded)) return false;
    }
    for (size_t i = 0; i < divisors_.size(); ++i) {
      const int missing = std::max(divisors_[i].decimals - state.decimals, 0);
      if (state.rest[i] * power_of_ten(missing, divisors_[i].units) % divisors_[i].units != 0)
        return false;
    }
    return true;
  }

  AutomatonBuilder& builder_;
  const NumberText& number_;
  std::vector<Divisor> divisors_;
  std::optional<Comparison> low_, high_;
  std::map<State, NodeId> nodes_;
  std::vector<std::pair<State, NodeId>> todo_;
};

NumberBound without_sign(NumberBound bound) {
  bound.value.negative = false;
  return bound;
}

}  // namespace

std::optional<Decimal> Decimal::of(const JsonValue& value) {
  std::string text;
  if (value.is(JsonValue::Kind::kInteger)) {
    text = value.text;
  } else if (value.is(JsonValue::Kind::kDouble)) {
    char buffer[64];
    const auto end = std::to_chars(buffer, buffer + sizeof(buffer), value.number).ptr;
    text.assign(buffer, end);
  } else {
    return std::nullopt;
  }
  Decimal out;
  if (text.starts_with('-')) {
    out.negative = true;
    text = text.substr(1);
  }
  int exponent = 0;
  if (const size_t e = text.find_first_of("eE"); e != text.npos) {
    const size_t digits = e + 1 + (text[e + 1] == '+');
    std::from_chars(text.data() + digits, text.data() + text.size(), exponent);
    text.resize(e);
  }
  if (exponent > kMaxDigits || exponent < -kMaxDigits || text.size() > kMaxDigits)
    return std::nullopt;
  const size_t point = std::min(text.find('.'), text.size());
  std::string digits = text.substr(0, point);
  if (point < text.size()) digits += text.substr(point + 1);
  int64_t place = static_cast<int64_t>(point) + exponent;  // of the point in the digits
  if (place < 0) {
    digits.insert(0, static_cast<size_t>(-place), '0');
    place = 0;
  }
  if (static_cast<size_t>(place) > digits.size())
    digits.append(static_cast<size_t>(place) - digits.size(), '0');
  out.whole = digits.substr(0, static_cast<size_t>(place));
  out.fraction = digits.substr(static_cast<size_t>(place));
  out.whole.erase(0, std::min(out.whole.find_first_not_of('0'), out.whole.size()));
  if (out.whole.empty()) out.whole.push_back('0');
  out.fraction.resize(out.fraction.find_last_not_of('0') + 1);
  if (out.is_zero()) out.negative = false;
  return out;
}

int compare(const Decimal& a, const Decimal& b) {
  if (a.negative != b.negative) return a.negative ? -1 : 1;
  const auto order = [](const auto& x, const auto& y) { return (x > y) - (x < y); };
  int magnitude = order(a.whole.size(), b.whole.size());
  if (magnitude == 0) magnitude = order(a.whole, b.whole);
  if (magnitude == 0) magnitude = order(a.fraction, b.fraction);
  return a.negative ? -magnitude : magnitude;
}

std::optional<bool> is_multiple(const Decimal& x, const Decimal& divisor) {
  const auto of = divisor_of(divisor);
  if (!of) return std::nullopt;
  std::string digits = x.whole + x.fraction;
  const int missing = of->decimals - static_cast<int>(x.fraction.size());
  if (missing < 0) return false;  // the last digit of a fraction is not zero
  digits.append(static_cast<size_t>(missing), '0');
  int64_t rest = 0;
  for (const char c : digits) rest = (rest * 10 + (c - '0')) % of->units;
  return rest == 0;
}

NodeId add_number(AutomatonBuilder& builder, NodeId from, const NumberText& number) {
  NumberWriter writer(builder, number);
  const NodeId end = builder.node();
  const auto &low = number.low, &high = number.high;
  const bool below_zero = high && (high->value.negative || high->value.is_zero());
  if (!high || !high->value.negative) {
    const bool zero = !(low && low->excluded && low->value.is_zero()) &&
                      !(high && high->excluded && high->value.is_zero());
    Magnitude range{low, high};
    if (low && low->value.negative) range.low.reset();
    writer.add(from, range, zero, end);
  }
  if (!low || low->value.negative) {
    Magnitude range;
    if (below_zero) range.low = without_sign(*high);
    if (low) range.high = without_sign(*low);
    writer.add(builder.literal(from, "-"), range, /*zero=*/false, end);
  }
  return end;
}

}  // namespace dsv4
