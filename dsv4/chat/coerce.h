// Values of tool calls as the types that the tool's schema declares, for servers that want it
// (--tool-coerce, docs/spec/serving.md 2.3): a model may write the number 5 as a string, or the
// string "5" as a number.
//
//   declared      written                      becomes
//   integer ...   string="true" with 5         5
//   boolean       string="true" with True      true
//   string        string="false" with 5        "5"
//   integer       string="false" with "5"      5
//
// A value that cannot be of a declared type stays as it is. Only whole parameters are coerced, not
// what is inside objects and arrays.

#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>

#include "dsv4/chat/json_value.h"

namespace dsv4 {

// A set of JSON Schema's types; none: the schema says nothing that is understood here.
enum class JsonTypes : uint8_t {
  kNone = 0,
  kNull = 1,
  kBoolean = 2,
  kInteger = 4,
  kNumber = 8,
  kString = 16,
  kArray = 32,
  kObject = 64,
};
constexpr JsonTypes operator|(JsonTypes a, JsonTypes b) {
  return static_cast<JsonTypes>(static_cast<int>(a) | static_cast<int>(b));
}
constexpr bool has(JsonTypes types, JsonTypes one) {
  return (static_cast<int>(types) & static_cast<int>(one)) != 0;
}

// By the names of a tool's parameters.
using ParameterTypes = std::unordered_map<std::string, JsonTypes>;

// The types of each of the `properties` of a tool's schema: of `type`, `enum`, `const`, and of all
// schemas of `anyOf` or `oneOf` together.
ParameterTypes parameter_types(const JsonValue& schema);

// Whether a value with string="true" may become another than a string.
constexpr bool may_coerce_string(JsonTypes types) {
  return types != JsonTypes::kNone && !has(types, JsonTypes::kString);
}

// The JSON that the value becomes; nothing: it stays as it was written. `is_string`: of the
// parameter's attribute.
std::optional<std::string> coerced(std::string_view text, bool is_string, JsonTypes types);

}  // namespace dsv4
