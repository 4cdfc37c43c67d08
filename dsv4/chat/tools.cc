#include "dsv4/chat/tools.h"

#include <algorithm>
#include <span>
#include <unordered_set>

#include "dsv4/chat/request_error.h"

namespace dsv4 {
namespace {

constexpr size_t kMaxToolName = 128;  // bytes

// Names stand in quotes inside a tag.
void check_tool_name(const std::string& name, const std::string& path) {
  if (name.empty() || name.size() > kMaxToolName)
    refuse(path, "want 1 to {} bytes, got {}", kMaxToolName, name.size());
  for (const char c : name) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte == 0x7f || c == '"' || c == '<' || c == '>')
      refuse(path, "byte 0x{:02x} is not allowed in a tool's name", byte);
  }
}

ToolDefinition read_tool(const Field& field) {
  if (const std::string type = field.at("type").string_or("function"); type != "function") {
    throw RequestError(
        "unsupported_tool", field.path() + ".type",
        fmt::format("{}.type: only tools of type function are supported", field.path()));
  }
  const Field function = field.at("function");
  ToolDefinition tool;
  tool.name = function.at("name").string();
  check_tool_name(tool.name, function.path() + ".name");
  tool.description = function.at("description").string_or("");
  tool.strict = function.at("strict").boolean(false);
  const Field parameters = function.at("parameters");
  if (parameters.present()) tool.parameters = parameters.object();
  if (tool.strict) tool.parameters = strict_schema(tool.parameters, parameters.path());
  return tool;
}

bool has_tool(const Conversation& conversation, const std::string& name) {
  return std::any_of(conversation.tools.begin(), conversation.tools.end(),
                     [&](const ToolDefinition& tool) { return tool.name == name; });
}

void read_choice_word(const Field& choice, Conversation& conversation) {
  const std::string& word = choice.string();
  if (word == "required") {
    conversation.tool_choice = ToolChoice::kRequired;
  } else if (word == "none") {
    conversation.tools.clear();
  } else if (word != "auto") {
    refuse(choice.path(), "want none, auto, required, a function or allowed_tools");
  }
}

// {"mode": "auto" or "required", "tools": [{"type": "function", "function": {"name"}}]}
void read_allowed(const Field& allowed, Conversation& conversation) {
  const std::string mode = allowed.at("mode").string_or("auto");
  if (mode != "auto" && mode != "required")
    refuse(allowed.path() + ".mode", "want auto or required");
  if (mode == "required") conversation.tool_choice = ToolChoice::kRequired;
  const Field tools = allowed.at("tools");
  for (size_t i = 0; i < tools.list(); ++i) {
    const Field name = tools.at(i).at("function").at("name");
    if (!has_tool(conversation, name.string()))
      refuse(name.path(), "no tool of that name is in tools");
    conversation.allowed_tools.push_back(name.string());
  }
  if (conversation.allowed_tools.empty()) refuse(tools.path(), "is empty");
}

void read_choice(const Field& choice, Conversation& conversation) {
  if (!choice.present()) return;
  if (choice.json().is_string()) return read_choice_word(choice, conversation);
  const std::string& type = choice.at("type").string();
  if (type == "allowed_tools") return read_allowed(choice.at("allowed_tools"), conversation);
  if (type != "function") refuse(choice.path() + ".type", "want function or allowed_tools");
  conversation.tool_choice = ToolChoice::kNamed;
  conversation.chosen_tool = choice.at("function").at("name").string();
  if (!has_tool(conversation, conversation.chosen_tool))
    refuse(choice.path(), "no tool of that name is in tools");
}

// Where a schema stands. Spelled out only for an error: keys are the client's and may be long.
struct Place {
  const Place* parent;
  std::string_view key;

  std::string text() const {
    return parent == nullptr ? std::string(key) : fmt::format("{}.{}", parent->text(), key);
  }
};

// Keywords whose value is a schema, a list of schemas, or a map of schemas.
constexpr std::string_view kSchemaKeys[] = {
    "items", "additionalItems", "contains", "not",   "if",    "then",
    "else",  "propertyNames",   "anyOf",    "oneOf", "allOf", "prefixItems",
};
constexpr std::string_view kSchemaMaps[] = {"$defs", "definitions", "patternProperties",
                                            "dependentSchemas"};

bool contains(std::span<const std::string_view> list, std::string_view word) {
  return std::find(list.begin(), list.end(), word) != list.end();
}

bool is_object_schema(const JsonValue& schema) {
  const JsonValue* type = schema.find("type");
  if (type == nullptr) return schema.find("properties") != nullptr;
  const JsonValue object = JsonValue::of_string("object");
  return *type == object ||
         std::find(type->items.begin(), type->items.end(), object) != type->items.end();
}

JsonValue strict(const JsonValue& schema, const Place& place);

JsonValue strict_map(const JsonValue& map, const Place& place) {
  JsonValue out = map;
  for (auto& [key, value] : out.members) value = strict(value, {&place, key});
  return out;
}

JsonValue strict_value(const JsonValue& value, const Place& place) {
  if (contains(kSchemaMaps, place.key)) return strict_map(value, place);
  if (!contains(kSchemaKeys, place.key)) return value;
  if (!value.is_array()) return strict(value, place);
  JsonValue out = value;
  for (size_t i = 0; i < out.items.size(); ++i) {
    const std::string index = std::to_string(i);
    out.items[i] = strict(out.items[i], {&place, index});
  }
  return out;
}

bool names_exactly(const JsonValue& required, const std::vector<JsonValue::Member>& properties) {
  std::unordered_set<std::string_view> missing;
  for (const auto& [key, value] : properties) missing.insert(key);
  for (const JsonValue& item : required.items) {
    if (!item.is_string() || missing.erase(item.text) == 0) return false;
  }
  return required.is_array() && missing.empty();
}

// properties, additionalProperties and required of an object.
void add_strict_object(const JsonValue& schema, const Place& place, JsonValue& out) {
  const JsonValue* given = schema.find("properties");
  if (given != nullptr && !given->is_object())
    refuse(place.text() + ".properties", "want an object");
  JsonValue properties =
      given == nullptr ? JsonValue::object() : strict_map(*given, {&place, "properties"});
  const JsonValue* additional = schema.find("additionalProperties");
  if (additional != nullptr && *additional != JsonValue::of_bool(false))
    refuse(place.text() + ".additionalProperties", "must be false in a strict tool");
  const JsonValue* listed = schema.find("required");
  if (listed != nullptr && !names_exactly(*listed, properties.members))
    refuse(place.text() + ".required", "must name each property of a strict tool once");
  JsonValue required = JsonValue::array();
  for (const auto& [key, value] : properties.members)
    required.items.push_back(JsonValue::of_string(key));
  out.add("properties", std::move(properties));
  out.add("additionalProperties", JsonValue::of_bool(false));
  out.add("required", std::move(required));
}

JsonValue strict(const JsonValue& schema, const Place& place) {
  if (!schema.is_object()) return schema;
  const bool object = is_object_schema(schema);
  JsonValue out = JsonValue::object();
  if (const JsonValue* type = schema.find("type")) out.add("type", *type);
  if (object) add_strict_object(schema, place, out);
  for (const auto& [key, value] : schema.members) {
    const bool placed =
        (key == "type" && !value.is_null()) ||
        (object && (key == "properties" || key == "additionalProperties" || key == "required"));
    if (!placed) out.add(key, strict_value(value, {&place, key}));
  }
  return out;
}

}  // namespace

JsonValue strict_schema(const JsonValue& schema, const std::string& path) {
  return strict(schema, {nullptr, path});
}

void read_tools(const Field& body, Conversation& conversation) {
  for (const char* key : {"functions", "function_call"}) {
    if (body.at(key).present()) refuse(key, "is not supported; want tools and tool_choice");
  }
  const Field tools = body.at("tools");
  if (!tools.present() || tools.list() == 0) return;  // the choice is then ignored
  std::unordered_set<std::string> names;
  for (size_t i = 0; i < tools.list(); ++i) {
    conversation.tools.push_back(read_tool(tools.at(i)));
    if (!names.insert(conversation.tools.back().name).second)
      refuse(tools.at(i).path() + ".function.name", "another tool has the same name");
  }
  read_choice(body.at("tool_choice"), conversation);
}

JsonValue read_arguments(const Field& arguments) {
  if (arguments.present() && arguments.json().is_object()) return arguments.json();
  const std::string& text = arguments.string();
  if (auto value = try_parse_json(text); value && value->is_object()) return *std::move(value);
  JsonValue object = JsonValue::object();
  object.add("arguments", JsonValue::of_string(text));
  return object;
}

std::vector<ToolCall> read_tool_calls(const Field& calls, bool lenient) {
  std::vector<ToolCall> out;
  if (!calls.present()) return out;
  std::unordered_set<std::string> ids;
  for (size_t i = 0; i < calls.list(); ++i) {
    const Field call = calls.at(i);
    if (call.at("type").string_or("function") != "function")
      refuse(call.path() + ".type", "want function");
    const Field id = call.at("id"), function = call.at("function");
    ToolCall& one = out.emplace_back();
    one.id = lenient ? id.string_or("") : id.string();
    if (!lenient && !ids.insert(one.id).second)
      refuse(id.path(), "Duplicate value for 'tool_call_id' of '{}'", one.id);
    one.name = function.at("name").string();
    one.arguments = read_arguments(function.at("arguments"));
  }
  return out;
}

}  // namespace dsv4
