// Strings, numbers, arrays and objects of a schema.

#include <algorithm>
#include <charconv>
#include <cmath>

#include "dsv4/chat/request_error.h"
#include "dsv4/grammar/code_points.h"
#include "dsv4/grammar/regex_grammar.h"
#include "dsv4/grammar/schema_grammar.h"

namespace dsv4 {
namespace {

constexpr int64_t kMaxRepeat = 10'000, kMaxDivisor = 1000;

// Narrower than the formats are, so that every checker agrees.
constexpr std::pair<std::string_view, std::string_view> kFormats[] = {
    {"date", "(?:19|20)\\d\\d-(?:0[1-9]|1[0-2])-(?:0[1-9]|1\\d|2[0-8])"},
    {"time",
     "(?:[01]\\d|2[0-3]):[0-5]\\d:[0-5]\\d(?:\\.\\d{1,6})?(?:Z|[+-](?:0\\d|1[0-3]):[0-5]\\d)"},
    {"date-time",
     "(?:19|20)\\d\\d-(?:0[1-9]|1[0-2])-(?:0[1-9]|1\\d|2[0-8])T(?:[01]\\d|2[0-3]):[0-5]\\d:[0-5]\\d"
     "(?:\\.\\d{1,6})?(?:Z|[+-](?:0\\d|1[0-3]):[0-5]\\d)"},
    {"uuid", "[0-9a-f]{8}-[0-9a-f]{4}-[1-5][0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}"},
    {"ipv4",
     "(?:(?:25[0-5]|2[0-4]\\d|1\\d\\d|[1-9]?\\d)\\.){3}(?:25[0-5]|2[0-4]\\d|1\\d\\d|[1-9]?\\d)"},
    {"ipv6", "(?:[0-9a-f]{1,4}:){7}[0-9a-f]{1,4}"},
    {"email",
     "[A-Za-z0-9_+-]{1,32}(?:\\.[A-Za-z0-9_+-]{1,16}){0,2}@[A-Za-z0-9]{1,32}(?:\\.[A-Za-z]{2,12}){"
     "1,3}"},
    {"hostname", "[A-Za-z0-9]{1,63}(?:\\.[A-Za-z0-9]{1,63}){0,3}"},
};

std::optional<int64_t> whole_number(const JsonValue& value) {
  if (value.is(JsonValue::Kind::kDouble)) {
    constexpr double kExact = 9007199254740992.0;  // 2^53
    if (std::trunc(value.number) != value.number || std::abs(value.number) > kExact)
      return std::nullopt;
    return static_cast<int64_t>(value.number);
  }
  int64_t number = 0;
  if (!value.is(JsonValue::Kind::kInteger)) return std::nullopt;
  const char* end = value.text.data() + value.text.size();
  const auto read = std::from_chars(value.text.data(), end, number);
  const bool fits = read.ec == std::errc() && std::abs(number) < int64_t{1} << 62;
  return fits ? std::optional(number) : std::nullopt;
}

}  // namespace

std::optional<int64_t> SchemaGrammar::count(const JsonValue& schema, const char* key,
                                            const std::string& pointer) const {
  const JsonValue* value = schema.find(key);
  if (value == nullptr) return std::nullopt;
  const auto number = whole_number(*value);
  if (!number || *number < 0 || *number > kMaxRepeat)
    refuse(pointer, fmt::format("{} must be a whole number up to {}", key, kMaxRepeat));
  return number;
}

NodeId SchemaGrammar::separator(NodeId from, char c) {
  return pieces_.spaces(builder_.literal(from, std::string(1, c)));
}

NodeId SchemaGrammar::build_string(NodeId from, const JsonValue& schema, const std::string& pointer,
                                   StringForm form) {
  const auto min = count(schema, "minLength", pointer), max = count(schema, "maxLength", pointer);
  if (min && max && *max < *min) refuse(pointer, "maxLength is below minLength");
  const JsonValue* pattern = schema.find("pattern");
  const JsonValue* format = schema.find("format");
  const bool json = form == StringForm::kJson;
  if (pattern == nullptr && format == nullptr) {
    return json ? pieces_.string(from, min.value_or(0), max.value_or(-1))
                : bare_text(from, min.value_or(0), max.value_or(-1));
  }
  if (min || max || (pattern != nullptr && format != nullptr))
    refuse(pointer, "pattern or format beside other limits of a string is not supported");
  std::string_view regex;
  if (pattern != nullptr) {
    if (!pattern->is_string()) refuse(pointer, "pattern must be a string");
    regex = pattern->text;
  } else {
    for (const auto& [name, text] : kFormats) {
      if (format->is_string() && format->text == name) regex = text;
    }
    if (regex.empty()) refuse(pointer, fmt::format("format '{}' is not supported", format->text));
  }
  if (!json) return add_regex(builder_, from, regex, RegexText::kRaw);
  const NodeId last =
      add_regex(builder_, builder_.literal(from, "\""), regex, RegexText::kInsideJsonString);
  return builder_.literal(last, "\"");
}

NodeId SchemaGrammar::bare_text(NodeId from, int64_t min, int64_t max) {
  const CodePoints all(0, 0x10ffff);
  if (min == 0 && max < 0)
    return builder_.repeat(from, 0, -1, [&](NodeId node) { return add_utf8(builder_, node, all); });
  if (!any_character_) {
    any_character_ = builder_.declare();
    builder_.end(add_utf8(builder_, builder_.begin(*any_character_), all));
  }
  return builder_.repeat(from, min, max,
                         [&](NodeId node) { return builder_.call(node, *any_character_); });
}

NodeId SchemaGrammar::build_number(NodeId from, bool integer, const JsonValue& schema,
                                   const std::string& pointer) {
  NumberRange range;
  const auto bound = [&](const char* key, bool low, bool excluded) {
    const JsonValue* value = schema.find(key);
    if (value == nullptr) return;
    if (value->is_bool()) {  // draft 4, beside minimum or maximum
      refuse(pointer, fmt::format("{} must be a number", key));
    }
    const auto number = whole_number(*value);
    if (!number) refuse(pointer, fmt::format("{} must be a whole number below 2^62", key));
    auto& place = low ? range.low : range.high;
    auto& flag = low ? range.low_excluded : range.high_excluded;
    const bool tighter =
        !place || (low ? *number > *place : *number < *place) || (*number == *place && excluded);
    if (!tighter) return;
    place = number;
    flag = excluded;
  };
  bound("minimum", true, false);
  bound("exclusiveMinimum", true, true);
  bound("maximum", false, false);
  bound("exclusiveMaximum", false, true);
  const bool bounded = range.low || range.high;
  if (const JsonValue* divisor = schema.find("multipleOf")) {
    const auto number = whole_number(*divisor);
    if (!integer || !number || *number < 1 || *number > kMaxDivisor || bounded) {
      refuse(pointer, fmt::format("multipleOf is supported for integers without bounds, 1 to {}",
                                  kMaxDivisor));
    }
    return pieces_.multiple_of(from, *number);
  }
  if (!bounded) return integer ? pieces_.integer(from) : pieces_.number(from);
  if (range.low && range.high) {
    const int64_t low = *range.low + (integer && range.low_excluded);
    const int64_t high = *range.high - (integer && range.high_excluded);
    const bool empty =
        high < low || (high == low && !integer && (range.low_excluded || range.high_excluded));
    if (empty) refuse(pointer, "no number is in this range");
  }
  return integer ? pieces_.integer_in(from, range) : pieces_.number_in(from, range);
}

NodeId SchemaGrammar::build_array(NodeId from, const JsonValue& schema,
                                  const std::string& pointer) {
  if (const JsonValue* unique = schema.find("uniqueItems");
      unique != nullptr && !(*unique == JsonValue::of_bool(false)))
    refuse(pointer, "uniqueItems is not supported");
  const JsonValue* items = schema.find("items");
  const JsonValue* prefix = schema.find("prefixItems");
  const char* prefix_key = "prefixItems";
  const char* items_key = "items";
  if (items != nullptr && items->is_array()) {  // draft 7
    prefix = items;
    prefix_key = "items";
    items = schema.find("additionalItems");
    items_key = "additionalItems";
  }
  if (prefix != nullptr && !prefix->is_array()) refuse(pointer, "prefixItems must be a list");
  const bool closed = items != nullptr && *items == JsonValue::of_bool(false);
  const auto fixed = static_cast<int64_t>(prefix == nullptr ? 0 : prefix->items.size());
  const int64_t min = count(schema, "minItems", pointer).value_or(0);
  auto max = count(schema, "maxItems", pointer);
  if (closed) max = std::min(max.value_or(fixed), fixed);
  if (max && *max < min) refuse(pointer, "no array has so many items");
  const auto item = [&](NodeId node, int64_t index) {
    if (index > 0) node = separator(node, ',');
    if (index < fixed) {
      return pieces_.spaces(value(node, prefix->items[static_cast<size_t>(index)],
                                  fmt::format("{}/{}/{}", pointer, prefix_key, index)));
    }
    return pieces_.spaces(items == nullptr ? pieces_.any_value(node)
                                           : value(node, *items, pointer + "/" + items_key));
  };
  NodeId at = separator(from, '[');
  const NodeId end = builder_.node();
  for (int64_t index = 0;; ++index) {
    if (index >= min) builder_.empty_edge(at, end);
    if (max && index == *max) break;
    if (!max && index >= std::max({fixed, min, int64_t{1}})) {
      builder_.empty_edge(
          builder_.repeat(at, 0, -1, [&](NodeId node) { return item(node, index); }), end);
      break;
    }
    at = item(at, index);
  }
  return builder_.literal(end, "]");
}

NodeId SchemaGrammar::build_object(NodeId from, const JsonValue& schema,
                                   const std::string& pointer) {
  struct Property {
    std::string key;
    const JsonValue* schema;  // null: any value
    bool required = false;
  };
  std::vector<Property> properties;
  if (const JsonValue* list = schema.find("properties")) {
    if (!list->is_object()) refuse(pointer, "properties must be an object");
    for (const auto& [key, one] : list->members) properties.push_back({key, &one});
  }
  if (const JsonValue* required = schema.find("required")) {
    if (!required->is_array()) refuse(pointer, "required must be a list");
    for (const JsonValue& name : required->items) {
      if (!name.is_string()) refuse(pointer, "required must be a list of strings");
      const auto found = std::find_if(properties.begin(), properties.end(),
                                      [&](const auto& one) { return one.key == name.text; });
      if (found != properties.end()) {
        found->required = true;
      } else {
        properties.push_back({name.text, nullptr, true});
      }
    }
  }
  const JsonValue* additional = schema.find("additionalProperties");
  const bool open = additional == nullptr || !(*additional == JsonValue::of_bool(false));
  const auto member_value = [&](NodeId node, const JsonValue* one, const std::string& place) {
    node = separator(pieces_.spaces(node), ':');
    return pieces_.spaces(one == nullptr ? pieces_.any_value(node) : value(node, *one, place));
  };
  // Two tracks: before the first member, and after one, where a comma comes next.
  NodeId none = separator(from, '{'), some = builder_.node();
  std::vector<std::string> keys;
  for (const Property& property : properties) {
    keys.push_back(property.key);
    const NodeId key = builder_.node();
    builder_.empty_edge(none, key);
    builder_.empty_edge(separator(some, ','), key);
    std::string text = "\"";
    append_json_escaped(text, property.key);
    const NodeId after = member_value(builder_.literal(key, text + "\""), property.schema,
                                      pointer + "/properties/" + property.key);
    const NodeId next_none = builder_.node(), next_some = builder_.node();
    builder_.empty_edge(after, next_some);
    if (!property.required) {
      builder_.empty_edge(none, next_none);
      builder_.empty_edge(some, next_some);
    }
    none = next_none;
    some = next_some;
  }
  const NodeId end = builder_.node();
  builder_.empty_edge(none, end);
  builder_.empty_edge(some, end);
  if (open) {
    const NodeId key = builder_.node();
    builder_.empty_edge(none, key);
    builder_.empty_edge(separator(some, ','), key);
    const NodeId after =
        member_value(pieces_.other_key(key, keys), additional, pointer + "/additionalProperties");
    builder_.empty_edge(separator(after, ','), key);
    builder_.empty_edge(after, end);
  }
  return builder_.literal(end, "}");
}

}  // namespace dsv4
