// JSON of requests, tool schemas and tool calls in the form that prompts need
// (docs/spec/serving.md 1.3): keys keep their order, integers keep all their digits, other numbers
// are doubles written as Python's repr does, and of equal keys the last value stands at the first
// one's place.
//
// nlohmann-json reads the text; its own tree keeps neither the digits of long integers nor the
// order of keys in linear time, so the tree is ours.

#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace dsv4 {

struct JsonValue {
  enum class Kind { kNull, kBool, kInteger, kDouble, kString, kArray, kObject };
  using Member = std::pair<std::string, JsonValue>;

  Kind kind = Kind::kNull;
  bool boolean = false;
  double number = 0;             // kDouble
  std::string text;              // kString: its bytes; kInteger: its digits
  std::vector<JsonValue> items;  // kArray
  std::vector<Member> members;   // kObject; keys are unique

  static JsonValue of_string(std::string text);
  static JsonValue of_bool(bool value);
  static JsonValue array() { return of_kind(Kind::kArray); }
  static JsonValue object() { return of_kind(Kind::kObject); }

  bool is(Kind wanted) const { return kind == wanted; }
  bool is_null() const { return kind == Kind::kNull; }
  bool is_bool() const { return kind == Kind::kBool; }
  bool is_string() const { return kind == Kind::kString; }
  bool is_array() const { return kind == Kind::kArray; }
  bool is_object() const { return kind == Kind::kObject; }
  // The value of a key; null where this is no object, the key is absent, or its value is null.
  const JsonValue* find(std::string_view key) const;
  void add(std::string key, JsonValue value) {
    members.emplace_back(std::move(key), std::move(value));
  }

  friend bool operator==(const JsonValue&, const JsonValue&) = default;

 private:
  static JsonValue of_kind(Kind kind);
};

// "an integer", "an object", ... for error lines.
const char* name(JsonValue::Kind kind);

// Errors are kBadInput, "WHAT: not valid JSON ..."; also nesting deeper than kMaxJsonDepth, more
// than kMaxJsonValues values, a string of more than kMaxJsonString bytes, and numbers beyond the
// range of a double.
inline constexpr int kMaxJsonDepth = 128;
inline constexpr size_t kMaxJsonString = size_t{32} << 20;
inline constexpr int64_t kMaxJsonValues = int64_t{1} << 21;  // each takes about 100 bytes
JsonValue parse_json(std::string_view text, std::string_view what);
// Nothing where the text is not valid JSON by the same rules.
std::optional<JsonValue> try_parse_json(std::string_view text);

// Separators ", " and ": ", escapes only where JSON demands them.
void append_json(std::string& out, const JsonValue& value);
std::string to_json(const JsonValue& value);
// The inside of a JSON string, without its quotes. Any cut of `text` gives the same bytes.
void append_json_escaped(std::string& out, std::string_view text);

}  // namespace dsv4
