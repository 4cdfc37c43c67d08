#include "dsv4/grammar/schema_check.h"

#include <algorithm>
#include <cmath>

#include "dsv4/base/error.h"
#include "dsv4/grammar/number_text.h"
#include "dsv4/grammar/regex_grammar.h"
#include "dsv4/text/utf8.h"

namespace dsv4 {
namespace {

using Kind = JsonValue::Kind;
constexpr int kMaxDepth = 256;

// A member also where its value is null.
const JsonValue* member(const JsonValue& object, std::string_view key) {
  const auto found = std::find_if(object.members.begin(), object.members.end(),
                                  [&](const auto& one) { return one.first == key; });
  return found == object.members.end() ? nullptr : &found->second;
}

size_t length_of(std::string_view text) {
  size_t count = 0;
  for (size_t i = 0; i < text.size(); ++count)
    i += static_cast<size_t>(next_utf8(text.substr(i)).size);
  return count;
}

bool is_number(const JsonValue& value) {
  return value.is(Kind::kInteger) || value.is(Kind::kDouble);
}

}  // namespace

bool same_value(const JsonValue& a, const JsonValue& b) {
  if (is_number(a) && is_number(b)) {
    const auto x = Decimal::of(a), y = Decimal::of(b);
    return x && y ? *x == *y : a == b;
  }
  if (a.kind != b.kind) return false;
  if (a.is_array()) {
    return a.items.size() == b.items.size() &&
           std::equal(a.items.begin(), a.items.end(), b.items.begin(), same_value);
  }
  if (!a.is_object()) return a == b;
  return a.members.size() == b.members.size() &&
         std::all_of(a.members.begin(), a.members.end(), [&](const auto& one) {
           const JsonValue* other = member(b, one.first);
           return other != nullptr && same_value(one.second, *other);
         });
}

bool has_type(const JsonValue& value, std::string_view type) {
  switch (value.kind) {
    case Kind::kNull:
      return type == "null";
    case Kind::kBool:
      return type == "boolean";
    case Kind::kInteger:
      return type == "integer" || type == "number";
    case Kind::kDouble:
      return type == "number" || (type == "integer" && std::trunc(value.number) == value.number);
    case Kind::kString:
      return type == "string";
    case Kind::kArray:
      return type == "array";
    case Kind::kObject:
      return type == "object";
  }
  return false;
}

const std::shared_ptr<TextDfa>& SchemaPatterns::of(const std::string& pattern) {
  const auto known = known_.find(pattern);
  if (known != known_.end()) return known->second;
  auto read = std::make_shared<TextDfa>(read_regex(pattern, RegexScope::kSearch));
  return known_.emplace(pattern, std::move(read)).first->second;
}

bool SchemaCheck::valid(const JsonValue& value, const JsonValue& schema) {
  if (schema.is_bool()) return schema.boolean;
  if (!schema.is_object()) fail(ErrorCode::kBadInput, "want an object, true or false");
  if (++depth_ > kMaxDepth) fail(ErrorCode::kBadInput, "the schema refers to itself without end");
  const bool found = valid_type(value, schema) && valid_parts(value, schema) &&
                     valid_number(value, schema) && valid_string(value, schema) &&
                     valid_array(value, schema) && valid_object(value, schema);
  --depth_;
  return found;
}

bool SchemaCheck::valid_type(const JsonValue& value, const JsonValue& schema) {
  if (const JsonValue* reference = schema.find("$ref");
      reference != nullptr && index_.ref_stands_alone())
    return true;
  if (const JsonValue* type = schema.find("type")) {
    const JsonValue* nullable = schema.find("nullable");
    bool fits = value.is_null() && nullable != nullptr && *nullable == JsonValue::of_bool(true);
    if (type->is_string()) fits = fits || has_type(value, type->text);
    for (const JsonValue& one : type->items) fits = fits || has_type(value, one.text);
    if (!fits) return false;
  }
  const JsonValue* constant = member(schema, "const");
  if (constant != nullptr && !same_value(value, *constant)) return false;
  const JsonValue* values = schema.find("enum");
  return values == nullptr ||
         std::any_of(values->items.begin(), values->items.end(),
                     [&](const JsonValue& one) { return same_value(value, one); });
}

bool SchemaCheck::valid_parts(const JsonValue& value, const JsonValue& schema) {
  if (const JsonValue* reference = schema.find("$ref")) {
    const JsonValue* target = index_.resolve(reference->text, schema);
    if (target == nullptr) fail(ErrorCode::kBadInput, "$ref {} leads nowhere", reference->text);
    if (!valid(value, *target)) return false;
    if (index_.ref_stands_alone()) return true;
  }
  const auto fitting = [&](const JsonValue& list) {
    return std::count_if(list.items.begin(), list.items.end(),
                         [&](const JsonValue& one) { return valid(value, one); });
  };
  if (const JsonValue* all = schema.find("allOf"))
    if (fitting(*all) != std::ssize(all->items)) return false;
  if (const JsonValue* any = schema.find("anyOf"))
    if (fitting(*any) == 0) return false;
  if (const JsonValue* one = schema.find("oneOf"))
    if (fitting(*one) != 1) return false;
  if (const JsonValue* no = schema.find("not"))
    if (valid(value, *no)) return false;
  const JsonValue* condition = schema.find("if");
  if (condition == nullptr) return true;
  const JsonValue* branch = schema.find(valid(value, *condition) ? "then" : "else");
  return branch == nullptr || valid(value, *branch);
}

bool SchemaCheck::count_in(size_t count, const JsonValue& schema, const char* least,
                           const char* most) {
  const JsonValue size{.kind = Kind::kInteger, .text = std::to_string(count)};
  JsonValue bounds = JsonValue::object();
  if (const JsonValue* bound = schema.find(least)) bounds.add("minimum", *bound);
  if (const JsonValue* bound = schema.find(most)) bounds.add("maximum", *bound);
  return bounds.members.empty() || valid_number(size, bounds);
}

bool SchemaCheck::valid_number(const JsonValue& value, const JsonValue& schema) {
  if (!is_number(value)) return true;
  const auto holds = [&](const char* key, const auto& fits) {
    const JsonValue* limit = schema.find(key);
    if (limit == nullptr || !is_number(*limit)) return true;
    const auto x = Decimal::of(value), y = Decimal::of(*limit);
    return x && y && fits(*x, *y);
  };
  const auto excluded = [&](const char* key) {  // draft 4
    const JsonValue* flag = schema.find(key);
    return flag != nullptr && flag->is_bool() && flag->boolean;
  };
  const bool above = excluded("exclusiveMinimum"), below = excluded("exclusiveMaximum");
  return holds("minimum", [&](const auto& x, const auto& y) { return compare(x, y) >= above; }) &&
         holds("maximum", [&](const auto& x, const auto& y) { return compare(y, x) >= below; }) &&
         holds("exclusiveMinimum",
               [](const auto& x, const auto& y) { return compare(x, y) > 0; }) &&
         holds("exclusiveMaximum",
               [](const auto& x, const auto& y) { return compare(x, y) < 0; }) &&
         holds("multipleOf", [](const auto& x, const auto& y) {
           const auto multiple = is_multiple(x, y);
           return multiple && *multiple;
         });
}

bool SchemaCheck::valid_string(const JsonValue& value, const JsonValue& schema) {
  if (!value.is_string()) return true;
  if (!count_in(length_of(value.text), schema, "minLength", "maxLength")) return false;
  const JsonValue* pattern = schema.find("pattern");
  return pattern == nullptr || patterns_.of(pattern->text)->contains(value.text);
}

bool SchemaCheck::valid_array(const JsonValue& value, const JsonValue& schema) {
  if (!value.is_array()) return true;
  if (!count_in(value.items.size(), schema, "minItems", "maxItems")) return false;
  const JsonValue* items = schema.find("items");
  const JsonValue* prefix = schema.find("prefixItems");
  if (items != nullptr && items->is_array()) {
    prefix = items;
    items = schema.find("additionalItems");
  }
  for (size_t i = 0; i < value.items.size(); ++i) {
    const bool fixed = prefix != nullptr && i < prefix->items.size();
    const JsonValue* one = fixed ? &prefix->items[i] : items;
    if (one != nullptr && !valid(value.items[i], *one)) return false;
    const JsonValue* unique = schema.find("uniqueItems");
    if (unique == nullptr || !(*unique == JsonValue::of_bool(true))) continue;
    for (size_t j = 0; j < i; ++j)
      if (same_value(value.items[i], value.items[j])) return false;
  }
  const JsonValue* contains = schema.find("contains");
  return contains == nullptr ||
         std::any_of(value.items.begin(), value.items.end(),
                     [&](const JsonValue& item) { return valid(item, *contains); });
}

bool SchemaCheck::valid_object(const JsonValue& value, const JsonValue& schema) {
  if (!value.is_object()) return true;
  if (!count_in(value.members.size(), schema, "minProperties", "maxProperties")) return false;
  if (const JsonValue* required = schema.find("required")) {
    for (const JsonValue& name : required->items)
      if (member(value, name.text) == nullptr) return false;
  }
  return valid_members(value, schema) && valid_dependencies(value, schema);
}

bool SchemaCheck::valid_members(const JsonValue& value, const JsonValue& schema) {
  const JsonValue* properties = schema.find("properties");
  const JsonValue* patterns = schema.find("patternProperties");
  const JsonValue* additional = schema.find("additionalProperties");
  const JsonValue* names = schema.find("propertyNames");
  for (const auto& [key, one] : value.members) {
    if (names != nullptr && !valid(JsonValue::of_string(key), *names)) return false;
    bool named = false;
    if (const JsonValue* own = properties == nullptr ? nullptr : member(*properties, key)) {
      named = true;
      if (!valid(one, *own)) return false;
    }
    if (patterns != nullptr) {
      for (const auto& [pattern, own] : patterns->members) {
        if (!patterns_.of(pattern)->contains(key)) continue;
        named = true;
        if (!valid(one, own)) return false;
      }
    }
    if (!named && additional != nullptr && !valid(one, *additional)) return false;
  }
  return true;
}

bool SchemaCheck::valid_dependencies(const JsonValue& value, const JsonValue& schema) {
  for (const char* keyword : {"dependencies", "dependentRequired", "dependentSchemas"}) {
    const JsonValue* all = schema.find(keyword);
    if (all == nullptr) continue;
    for (const auto& [key, needs] : all->members) {
      if (member(value, key) == nullptr) continue;
      if (needs.is_array()) {
        for (const JsonValue& name : needs.items)
          if (member(value, name.text) == nullptr) return false;
      } else if (!valid(value, needs)) {
        return false;
      }
    }
  }
  return true;
}

}  // namespace dsv4
