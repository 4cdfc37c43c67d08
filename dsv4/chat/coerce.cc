#include "dsv4/chat/coerce.h"

#include <cmath>

#include "dsv4/chat/call_arguments.h"

namespace dsv4 {
namespace {

using Kind = JsonValue::Kind;

JsonTypes type_of_name(std::string_view name) {
  if (name == "null") return JsonTypes::kNull;
  if (name == "boolean") return JsonTypes::kBoolean;
  if (name == "integer") return JsonTypes::kInteger;
  if (name == "number") return JsonTypes::kNumber;
  if (name == "string") return JsonTypes::kString;
  if (name == "array") return JsonTypes::kArray;
  if (name == "object") return JsonTypes::kObject;
  return JsonTypes::kNone;
}

// Types that a value has: 5.0 is an integer, too.
JsonTypes types_of(const JsonValue& value) {
  switch (value.kind) {
    case Kind::kNull:
      return JsonTypes::kNull;
    case Kind::kBool:
      return JsonTypes::kBoolean;
    case Kind::kInteger:
      return JsonTypes::kInteger | JsonTypes::kNumber;
    case Kind::kDouble:
      return std::trunc(value.number) == value.number ? JsonTypes::kInteger | JsonTypes::kNumber
                                                      : JsonTypes::kNumber;
    case Kind::kString:
      return JsonTypes::kString;
    case Kind::kArray:
      return JsonTypes::kArray;
    case Kind::kObject:
      return JsonTypes::kObject;
  }
  return JsonTypes::kNone;
}

bool fits(const JsonValue& value, JsonTypes types) {
  return has(types, types_of(value));
}

// Types of all members together; none where one of them says nothing.
template <class TypesOf>
JsonTypes union_of(const std::vector<JsonValue>& members, const TypesOf& types_of_member) {
  JsonTypes all = JsonTypes::kNone;
  for (const JsonValue& member : members) {
    const JsonTypes types = types_of_member(member);
    if (types == JsonTypes::kNone) return JsonTypes::kNone;
    all = all | types;
  }
  return all;
}

JsonTypes schema_types(const JsonValue& schema, int depth = 0) {
  constexpr int kMostDepth = 8;
  if (!schema.is_object() || depth == kMostDepth) return JsonTypes::kNone;
  if (const JsonValue* type = schema.find("type")) {
    if (type->is_string()) return type_of_name(type->text);
    return union_of(type->items, [](const JsonValue& name) { return type_of_name(name.text); });
  }
  if (const JsonValue* choices = schema.find("enum")) return union_of(choices->items, types_of);
  if (const JsonValue* only = schema.find("const")) return types_of(*only);
  for (const char* key : {"anyOf", "oneOf"}) {
    if (const JsonValue* schemas = schema.find(key)) {
      return union_of(schemas->items,
                      [&](const JsonValue& one) { return schema_types(one, depth + 1); });
    }
  }
  return JsonTypes::kNone;
}

// JSON of one of the types, also where it is spelled as in Python.
std::optional<std::string> value_of_text(std::string_view text, JsonTypes types) {
  const std::string_view json = trim_json(text);
  if (const auto value = try_parse_json(json)) {
    if (fits(*value, types)) return std::string(json);
    return std::nullopt;
  }
  if (has(types, JsonTypes::kBoolean) && json == "True") return "true";
  if (has(types, JsonTypes::kBoolean) && json == "False") return "false";
  if (has(types, JsonTypes::kNull) && json == "None") return "null";
  return std::nullopt;
}

}  // namespace

ParameterTypes parameter_types(const JsonValue& schema) {
  ParameterTypes types;
  if (const JsonValue* properties = schema.find("properties")) {
    for (const auto& [key, value] : properties->members) types[key] = schema_types(value);
  }
  return types;
}

std::optional<std::string> coerced(std::string_view text, bool is_string, JsonTypes types) {
  if (types == JsonTypes::kNone) return std::nullopt;
  if (is_string) {
    return may_coerce_string(types) ? value_of_text(text, types) : std::nullopt;
  }
  const std::string_view json = trim_json(text);
  const auto value = try_parse_json(json);
  if (!value) return value_of_text(text, types);
  if (fits(*value, types)) return std::nullopt;
  if (value->is_string()) return value_of_text(value->text, types);
  if (!has(types, JsonTypes::kString)) return std::nullopt;
  return to_json(JsonValue::of_string(std::string(json)));
}

}  // namespace dsv4
