// Which piece a schema becomes; schema_parts.cc has the pieces with keywords of their own.

#include "dsv4/grammar/schema_grammar.h"

#include <algorithm>
#include <charconv>

#include "dsv4/chat/request_error.h"
#include "dsv4/grammar/regex_grammar.h"

namespace dsv4 {
namespace {

constexpr size_t kMaxSchemas = 10'000, kMaxDepth = 64, kMaxBytes = 256 << 10;

constexpr std::string_view kAnnotations[] = {"title",    "description", "default",     "examples",
                                             "$schema",  "$id",         "$comment",    "deprecated",
                                             "readOnly", "writeOnly",   "definitions", "$defs"};
// Keyword and the type that it is about; "" is none in particular.
constexpr std::pair<std::string_view, std::string_view> kKeywords[] = {
    {"type", ""},
    {"enum", ""},
    {"const", ""},
    {"anyOf", ""},
    {"oneOf", ""},
    {"allOf", ""},
    {"$ref", ""},
    {"nullable", ""},
    {"properties", "object"},
    {"required", "object"},
    {"additionalProperties", "object"},
    {"items", "array"},
    {"prefixItems", "array"},
    {"additionalItems", "array"},
    {"minItems", "array"},
    {"maxItems", "array"},
    {"uniqueItems", "array"},
    {"pattern", "string"},
    {"minLength", "string"},
    {"maxLength", "string"},
    {"format", "string"},
    {"minimum", "number"},
    {"maximum", "number"},
    {"exclusiveMinimum", "number"},
    {"exclusiveMaximum", "number"},
    {"multipleOf", "number"},
};

bool is_annotation(std::string_view key) {
  return std::find(std::begin(kAnnotations), std::end(kAnnotations), key) != std::end(kAnnotations);
}

std::optional<std::string_view> type_of_keyword(std::string_view key) {
  for (const auto& [keyword, type] : kKeywords) {
    if (keyword == key) return type;
  }
  return std::nullopt;
}

bool has_type(const JsonValue& value, std::string_view type) {
  using Kind = JsonValue::Kind;
  switch (value.kind) {
    case Kind::kNull:
      return type == "null";
    case Kind::kBool:
      return type == "boolean";
    case Kind::kInteger:
      return type == "integer" || type == "number";
    case Kind::kDouble:
      return type == "number";
    case Kind::kString:
      return type == "string";
    case Kind::kArray:
      return type == "array";
    case Kind::kObject:
      return type == "object";
  }
  return false;
}

std::string pointer_step(std::string_view key) {
  std::string out = "/";
  for (const char c : key) out += c == '~' ? "~0" : c == '/' ? "~1" : std::string(1, c);
  return out;
}

}  // namespace

void SchemaGrammar::refuse(const std::string& pointer, const std::string& what) const {
  throw RequestError(
      "unsupported_schema", param_,
      fmt::format("{}: schema at {}: {}", param_, pointer.empty() ? "/" : pointer, what));
}

void SchemaGrammar::check_keywords(const JsonValue& schema, const std::string& pointer) const {
  for (const auto& [key, value] : schema.members) {
    if (!is_annotation(key) && !type_of_keyword(key))
      refuse(pointer, fmt::format("keyword '{}' is not supported", key));
  }
}

RuleId SchemaGrammar::rule_of(const JsonValue& schema, const std::string& pointer) {
  if (const auto known = rules_.find(&schema); known != rules_.end()) return known->second;
  if (rules_.size() >= kMaxSchemas)
    refuse(pointer, fmt::format("more than {} schemas", kMaxSchemas));
  if (static_cast<size_t>(std::count(pointer.begin(), pointer.end(), '/')) > 2 * kMaxDepth)
    refuse(pointer, fmt::format("nested deeper than {} levels", kMaxDepth));
  const RuleId rule = builder_.declare();
  rules_[&schema] = rule;
  put_off_.push_back({rule, {&schema, pointer}});
  return rule;
}

NodeId SchemaGrammar::value(NodeId from, const JsonValue& schema, const std::string& pointer) {
  return builder_.call(from, rule_of(schema, pointer));
}

void SchemaGrammar::finish() {
  while (!put_off_.empty()) {
    const auto [rule, place] = std::move(put_off_.back());
    put_off_.pop_back();
    try {
      builder_.end(build(builder_.begin(rule), *place.schema, place.pointer));
    } catch (const RequestError&) {
      throw;
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kBadInput) throw;
      refuse(place.pointer, error.what());
    }
  }
}

NodeId SchemaGrammar::build(NodeId from, const JsonValue& original, const std::string& pointer) {
  if (original.is_bool()) {
    if (!original.boolean) refuse(pointer, "nothing is valid under false");
    return pieces_.any_value(from);
  }
  if (!original.is_object()) refuse(pointer, "want an object or true");
  check_keywords(original, pointer);
  const JsonValue& schema = merged(original, pointer);
  if (const JsonValue* reference = schema.find("$ref")) {
    if (!reference->is_string()) refuse(pointer, "$ref must be a string");
    const Place place = resolve(reference->text, pointer);
    return value(from, *place.schema, place.pointer);
  }
  const NodeId end = builder_.node();
  const auto one_of = [&](const std::vector<JsonValue>& values) {
    for (const JsonValue* one : values_of(values, schema, pointer))
      builder_.empty_edge(builder_.literal(from, to_json(*one)), end);
    return end;
  };
  if (const JsonValue* values = schema.find("enum")) {
    if (!values->is_array() || values->items.empty()) refuse(pointer, "enum must be a list");
    return one_of(values->items);
  }
  for (const auto& [key, constant] : schema.members) {
    if (key == "const") return one_of({constant});
  }
  for (const char* keyword : {"anyOf", "oneOf"}) {
    if (schema.find(keyword) == nullptr) continue;
    for (const Place& one : alternatives_of(keyword, schema, pointer))
      builder_.empty_edge(value(from, *one.schema, one.pointer), end);
    return end;
  }
  for (const std::string& type : types_of(schema, pointer))
    builder_.empty_edge(build_type(from, type, schema, pointer), end);
  return end;
}

std::vector<std::string> SchemaGrammar::types_of(const JsonValue& schema,
                                                 const std::string& pointer) const {
  std::vector<std::string> types;
  const JsonValue* type = schema.find("type");
  if (type == nullptr) {
    // Of the keywords: one type, or any value.
    for (const auto& [key, value] : schema.members) {
      const auto about = type_of_keyword(key);
      if (!about || about->empty()) continue;
      if (!types.empty() && types[0] != *about)
        refuse(pointer, "keywords of several types without a type");
      types = {std::string(*about)};
    }
    if (types.empty()) types = {"any"};
  } else if (type->is_string()) {
    types = {type->text};
  } else if (type->is_array() && !type->items.empty()) {
    for (const JsonValue& one : type->items) types.push_back(one.text);
  } else {
    refuse(pointer, "type must be a string or a list of strings");
  }
  const JsonValue* nullable = schema.find("nullable");
  const bool null = nullable != nullptr && nullable->is_bool() && nullable->boolean;
  if (null && std::find(types.begin(), types.end(), "null") == types.end() && types[0] != "any")
    types.push_back("null");
  return types;
}

NodeId SchemaGrammar::build_type(NodeId from, const std::string& type, const JsonValue& schema,
                                 const std::string& pointer) {
  if (type == "any") return pieces_.any_value(from);
  if (type == "null") return builder_.literal(from, "null");
  if (type == "boolean") {
    const NodeId end = builder_.node();
    builder_.empty_edge(builder_.literal(from, "true"), end);
    builder_.empty_edge(builder_.literal(from, "false"), end);
    return end;
  }
  if (type == "string") return build_string(from, schema, pointer, StringForm::kJson);
  if (type == "integer" || type == "number")
    return build_number(from, type == "integer", schema, pointer);
  if (type == "array") return build_array(from, schema, pointer);
  if (type == "object") return build_object(from, schema, pointer);
  refuse(pointer, fmt::format("unknown type '{}'", type));
}

std::vector<const JsonValue*> SchemaGrammar::values_of(const std::vector<JsonValue>& values,
                                                       const JsonValue& schema,
                                                       const std::string& pointer) const {
  for (const auto& [key, value] : schema.members) {
    const bool fine =
        is_annotation(key) || key == "enum" || key == "const" || key == "type" || key == "nullable";
    if (!fine) refuse(pointer, fmt::format("enum or const beside '{}' is not supported", key));
  }
  const JsonValue* only = nullptr;
  for (const auto& [key, value] : schema.members) {
    if (key == "const") only = &value;
  }
  const bool any_type = schema.find("type") == nullptr;
  const std::vector<std::string> types =
      any_type ? std::vector<std::string>{} : types_of(schema, pointer);
  std::vector<const JsonValue*> found;
  for (const JsonValue& value : values) {
    const bool typed = any_type || std::any_of(types.begin(), types.end(), [&](const auto& type) {
                         return has_type(value, type);
                       });
    if (typed && (only == nullptr || value == *only)) found.push_back(&value);
  }
  if (found.empty()) refuse(pointer, "no value of enum or const has the type");
  return found;
}

std::vector<SchemaGrammar::Place> SchemaGrammar::alternatives_of(const char* keyword,
                                                                 const JsonValue& schema,
                                                                 const std::string& pointer) {
  const JsonValue& list = *schema.find(keyword);
  if (!list.is_array() || list.items.empty())
    refuse(pointer, fmt::format("{} must be a list", keyword));
  JsonValue beside = JsonValue::object();
  for (const auto& [key, value] : schema.members) {
    if (key != keyword && !is_annotation(key)) beside.add(key, value);
  }
  std::vector<Place> places;
  for (size_t i = 0; i < list.items.size(); ++i) {
    const std::string place = fmt::format("{}/{}/{}", pointer, keyword, i);
    const JsonValue* one = &list.items[i];
    if (!beside.members.empty()) {
      if (!one->is_object()) refuse(place, "want an object");
      check_keywords(*one, place);
      one = &owned_.emplace_back(merge(beside, *one, place));
    }
    places.push_back({one, place});
  }
  return places;
}

// As build(), of strings only.
std::optional<NodeId> SchemaGrammar::bare_strings(NodeId from, const JsonValue& original,
                                                  const std::string& pointer) {
  constexpr int kMaxBareDepth = 16;
  if (original.is_bool())
    return original.boolean ? std::optional(bare_text(from, 0, -1)) : std::nullopt;
  if (!original.is_object()) refuse(pointer, "want an object or true");
  check_keywords(original, pointer);
  const JsonValue& schema = merged(original, pointer);
  std::vector<Place> others;
  const NodeId end = builder_.node();
  bool any = false;
  const auto add_values = [&](const std::vector<JsonValue>& values) {
    for (const JsonValue* one : values_of(values, schema, pointer)) {
      if (!one->is_string()) continue;
      builder_.empty_edge(builder_.literal(from, one->text), end);
      any = true;
    }
    return any ? std::optional(end) : std::nullopt;
  };
  if (const JsonValue* reference = schema.find("$ref"); reference != nullptr) {
    if (!reference->is_string()) refuse(pointer, "$ref must be a string");
    others = {resolve(reference->text, pointer)};
  } else if (const JsonValue* values = schema.find("enum")) {
    if (!values->is_array()) refuse(pointer, "enum must be a list");
    return add_values(values->items);
  }
  for (const auto& [key, constant] : schema.members) {
    if (key == "const") return add_values({constant});
  }
  for (const char* keyword : {"anyOf", "oneOf"}) {
    if (others.empty() && schema.find(keyword) != nullptr)
      others = alternatives_of(keyword, schema, pointer);
  }
  if (others.empty()) {
    for (const std::string& type : types_of(schema, pointer)) {
      if (type == "any") return bare_text(from, 0, -1);
      if (type == "string") return build_string(from, schema, pointer, StringForm::kBare);
    }
    return std::nullopt;
  }
  if (bare_depth_ == kMaxBareDepth) return std::nullopt;  // a $ref to itself
  ++bare_depth_;
  for (const Place& one : others) {
    const auto strings = bare_strings(from, *one.schema, one.pointer);
    if (strings) builder_.empty_edge(*strings, end);
    any = any || strings;
  }
  --bare_depth_;
  return any ? std::optional(end) : std::nullopt;
}

SchemaGrammar::Place SchemaGrammar::resolve(const std::string& reference,
                                            const std::string& pointer) const {
  if (!reference.starts_with("#")) refuse(pointer, "only $ref to # are supported");
  const JsonValue* at = &root_;
  for (size_t begin = 1; begin < reference.size();) {
    if (reference[begin] != '/') refuse(pointer, "only $ref with a JSON pointer are supported");
    const size_t end = std::min(reference.find('/', begin + 1), reference.size());
    std::string key;
    for (size_t i = begin + 1; i < end; ++i) {
      const bool escape = reference[i] == '~' && i + 1 < end;
      if (escape) ++i;
      key += !escape ? reference[i] : reference[i] == '1' ? '/' : '~';
    }
    begin = end;
    const JsonValue* next = at->find(key);
    if (at->is_array()) {
      size_t index = 0;
      const auto read = std::from_chars(key.data(), key.data() + key.size(), index);
      if (read.ec == std::errc() && index < at->items.size()) next = &at->items[index];
    }
    if (next == nullptr) refuse(pointer, fmt::format("$ref {} leads nowhere", reference));
    at = next;
  }
  return {at, reference.substr(1)};
}

// allOf and what stands beside it or beside $ref as one schema.
const JsonValue& SchemaGrammar::merged(const JsonValue& schema, const std::string& pointer) {
  const JsonValue* all = schema.find("allOf");
  const JsonValue* reference = schema.find("$ref");
  JsonValue rest = JsonValue::object();
  for (const auto& [key, value] : schema.members) {
    if (key != "allOf" && key != "$ref" && !is_annotation(key)) rest.add(key, value);
  }
  if (all == nullptr && (reference == nullptr || rest.members.empty())) return schema;
  std::vector<Place> parts;
  if (reference != nullptr) parts.push_back(resolve(reference->text, pointer));
  if (all != nullptr) {
    if (!all->is_array() || all->items.empty()) refuse(pointer, "allOf must be a list");
    for (size_t i = 0; i < all->items.size(); ++i)
      parts.push_back({&all->items[i], fmt::format("{}/allOf/{}", pointer, i)});
  }
  for (size_t i = 0, hops = 0; i < parts.size(); ++i) {
    const JsonValue* part = parts[i].schema;
    while (part->find("$ref") != nullptr && ++hops < kMaxDepth)
      part = resolve(part->find("$ref")->text, parts[i].pointer).schema;
    if (!part->is_object() || part->find("allOf") != nullptr || part->find("$ref") != nullptr)
      refuse(parts[i].pointer, "allOf that cannot be merged");
    check_keywords(*part, parts[i].pointer);
    rest = merge(rest, *part, parts[i].pointer);
  }
  return owned_.emplace_back(std::move(rest));
}

JsonValue SchemaGrammar::merge(const JsonValue& a, const JsonValue& b,
                               const std::string& pointer) const {
  // Each of these is about what its own schema names beside it, which merging would change.
  constexpr std::pair<const char*, const char*> kRests[] = {{"additionalProperties", "properties"},
                                                            {"items", "prefixItems"},
                                                            {"additionalItems", "items"}};
  for (const auto& [rest, named] : kRests) {
    for (const auto& [one, other] : {std::pair(&a, &b), std::pair(&b, &a)}) {
      const JsonValue *bound = one->find(rest), *names = other->find(named),
                      *own = one->find(named);
      const bool bounds =
          bound != nullptr && !(*bound == JsonValue::of_bool(true)) && !bound->is_array();
      if (bounds && names != nullptr && (own == nullptr || !(*own == *names)))
        refuse(pointer, fmt::format("allOf with {} cannot be merged", rest));
    }
  }
  JsonValue out = a;
  for (const auto& [key, value] : b.members) {
    if (is_annotation(key)) continue;
    const auto same =
        std::find_if(out.members.begin(), out.members.end(),
                     [&key = key](const auto& member) { return member.first == key; });
    if (same == out.members.end()) {
      out.add(key, value);
    } else if (!(same->second == value)) {
      same->second = merge_keyword(key, same->second, value, pointer);
    }
  }
  return out;
}

JsonValue SchemaGrammar::merge_keyword(const std::string& key, const JsonValue& a,
                                       const JsonValue& b, const std::string& pointer) const {
  if (key == "required" && a.is_array() && b.is_array()) {
    JsonValue out = a;
    for (const JsonValue& item : b.items) {
      if (std::find(out.items.begin(), out.items.end(), item) == out.items.end())
        out.items.push_back(item);
    }
    return out;
  }
  if (key == "properties" && a.is_object() && b.is_object()) {
    JsonValue out = a;
    for (const auto& [name, schema] : b.members) {
      const auto same = std::find_if(out.members.begin(), out.members.end(),
                                     [&, &n = name](const auto& m) { return m.first == n; });
      if (same == out.members.end()) {
        out.add(name, schema);
      } else if (!(same->second == schema)) {
        refuse(pointer + pointer_step(name), "allOf that cannot be merged");
      }
    }
    return out;
  }
  refuse(pointer, fmt::format("allOf that cannot be merged: two values of '{}'", key));
}

Automaton json_object_grammar() {
  AutomatonBuilder builder;
  JsonPieces pieces(builder, JsonSpaces::kSome);
  const RuleId rule = builder.declare();
  builder.end(pieces.any_object(builder.begin(rule)));
  return builder.finish();
}

Automaton json_schema_grammar(const JsonValue& schema, JsonSpaces spaces,
                              const std::string& param) {
  if (to_json(schema).size() > kMaxBytes) {
    throw RequestError("unsupported_schema", param,
                       fmt::format("{}: the schema exceeds {} bytes", param, kMaxBytes));
  }
  AutomatonBuilder builder;
  SchemaGrammar grammar(builder, schema, spaces, param);
  const RuleId rule = builder.declare();
  builder.end(grammar.value(builder.begin(rule), schema, ""));
  grammar.finish();
  try {
    return builder.finish();
  } catch (const Error& error) {
    throw RequestError("unsupported_schema", param, fmt::format("{}: {}", param, error.what()));
  }
}

Automaton regex_format_grammar(std::string_view pattern, const std::string& param) {
  try {
    AutomatonBuilder builder;
    const RuleId rule = builder.declare();
    builder.end(add_regex(builder, builder.begin(rule), pattern, RegexText::kRaw));
    return builder.finish();
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kBadInput) throw;
    throw RequestError("unsupported_schema", param, fmt::format("{}: {}", param, error.what()));
  }
}

}  // namespace dsv4
