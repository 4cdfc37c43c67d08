#include "dsv4/server/numbers.h"

#include <charconv>
#include <cmath>

#include "dsv4/chat/request_error.h"

namespace dsv4 {

std::optional<int64_t> read_integer(const Field& field, int64_t low, int64_t high) {
  if (!field.present()) return std::nullopt;
  const JsonValue& json = field.json();
  int64_t value = 0;
  bool valid = false;
  if (json.is(JsonValue::Kind::kInteger)) {
    const char* end = json.text.data() + json.text.size();
    const auto read = std::from_chars(json.text.data(), end, value);
    valid = read.ec == std::errc() && read.ptr == end;
  } else if (json.is(JsonValue::Kind::kDouble)) {
    constexpr double kExact = 9007199254740992.0;  // 2^53
    valid = std::trunc(json.number) == json.number && std::abs(json.number) <= kExact;
    if (valid) value = static_cast<int64_t>(json.number);
  } else {
    refuse(field.path(), "want an integer, got {}", name(json.kind));
  }
  if (!valid || value < low || value > high)
    refuse(field.path(), "want an integer in [{}, {}]", low, high);
  return value;
}

std::optional<double> read_number(const Field& field, double low, double high, LowEnd end) {
  if (!field.present()) return std::nullopt;
  const JsonValue& json = field.json();
  double value = 0;
  bool valid = true;
  if (json.is(JsonValue::Kind::kDouble)) {
    value = json.number;
  } else if (json.is(JsonValue::Kind::kInteger)) {
    const char* stop = json.text.data() + json.text.size();
    valid = std::from_chars(json.text.data(), stop, value).ec == std::errc();
  } else {
    refuse(field.path(), "want a number, got {}", name(json.kind));
  }
  const bool above = end == LowEnd::kExcluded ? value > low : value >= low;
  if (!valid || !above || value > high) {
    refuse(field.path(), "want a number in {}{}, {}]", end == LowEnd::kExcluded ? "(" : "[", low,
           high);
  }
  return value;
}

}  // namespace dsv4
