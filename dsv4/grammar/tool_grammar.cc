#include "dsv4/grammar/tool_grammar.h"

#include <algorithm>
#include <memory>

#include "dsv4/base/error.h"
#include "dsv4/chat/request_error.h"
#include "dsv4/grammar/code_points.h"
#include "dsv4/grammar/schema_grammar.h"

namespace dsv4 {
namespace {

bool has_usable_schema(const ToolDefinition& tool) {
  try {
    tool_grammar({tool}, {.schemas = ToolSchemas::kAll});
    return true;
  } catch (const RequestError&) {
    return false;
  }
}

class ToolWriter {
 public:
  ToolWriter(AutomatonBuilder& builder, const ToolGrammarOptions& options)
      : builder_(builder), options_(options) {}

  NodeId calls(NodeId from, const std::vector<ToolDefinition>& tools) {
    if (!options_.inside_block) from = open_tag(from, "tool_calls>\n");
    const auto one = [&](NodeId node) {
      const NodeId end = builder_.node();
      for (size_t i = 0; i < tools.size(); ++i) {
        if (options_.only.empty() || tools[i].name == options_.only)
          builder_.empty_edge(invoke(node, tools[i], i), end);
      }
      return end;
    };
    // Repeated calls share one rule.
    const RuleId call = builder_.declare();
    builder_.end(one(builder_.begin(call)));
    const NodeId last = builder_.repeat(from, 1, options_.single ? 1 : -1,
                                        [&](NodeId node) { return builder_.call(node, call); });
    return close_tag(last, "tool_calls>");
  }

  void finish() {
    for (const auto& schema : schemas_) schema->finish();
  }

  // Any text without the marker.
  NodeId text(NodeId from) {
    const NodeId loop = builder_.node();
    builder_.empty_edge(from, loop);
    builder_.empty_edge(add_utf8(builder_, loop, CodePoints(0, 0x10ffff)), loop);
    return loop;
  }

 private:
  NodeId open_tag(NodeId from, const std::string& rest) {
    return builder_.literal(builder_.dsml(builder_.literal(from, "<")), rest);
  }
  NodeId close_tag(NodeId from, const std::string& rest) {
    return builder_.literal(builder_.dsml(builder_.literal(from, "</")), rest);
  }

  NodeId invoke(NodeId from, const ToolDefinition& tool, size_t index) {
    NodeId at = open_tag(from, "invoke name=\"" + tool.name + "\">\n");
    if (by_schema(tool)) {
      at = parameters(at, tool, fmt::format("tools[{}].function.parameters", index));
    } else {
      at = builder_.repeat(at, 0, -1, [this](NodeId node) { return any_parameter(node); });
    }
    return close_tag(at, "invoke>\n");
  }

  bool by_schema(const ToolDefinition& tool) const {
    switch (options_.schemas) {
      case ToolSchemas::kNone:
        return false;
      case ToolSchemas::kStrict:
        return tool.strict;
      case ToolSchemas::kUsable:
        return tool.strict || has_usable_schema(tool);
      case ToolSchemas::kAll:
        return true;
    }
    return true;
  }

  NodeId any_parameter(NodeId from) {
    CodePoints names(0x20, 0x10ffff);
    for (const char32_t c : {U'"', U'<', U'>'}) names = names.without(CodePoints(c, c));
    const NodeId name =
        builder_.repeat(open_tag(from, "parameter name=\""), 1, -1,
                        [&](NodeId node) { return add_utf8(builder_, node, names); });
    const NodeId kind = builder_.literal(name, "\" string=\"");
    const NodeId value = builder_.node();
    for (const char* word : {"true", "false"})
      builder_.empty_edge(builder_.literal(kind, word), value);
    return close_tag(text(builder_.literal(value, "\">")), "parameter>\n");
  }

  NodeId parameters(NodeId from, const ToolDefinition& tool, const std::string& param) {
    schemas_.push_back(
        std::make_unique<SchemaGrammar>(builder_, tool.parameters, JsonSpaces::kSome, param));
    const JsonValue none = JsonValue::object(), empty = JsonValue::array();
    const JsonValue* properties = tool.parameters.find("properties");
    const JsonValue* required = tool.parameters.find("required");
    if (properties == nullptr) properties = &none;
    if (required == nullptr) required = &empty;
    for (const JsonValue& name : required->items) {
      if (name.is_string() && properties->find(name.text) == nullptr) {
        throw RequestError(
            "unsupported_schema", param,
            fmt::format("{}: '{}' is required and not in properties", param, one_line(name.text)));
      }
    }
    for (const auto& [key, schema] : properties->members) {
      const JsonValue name = JsonValue::of_string(key);
      const bool must =
          std::find(required->items.begin(), required->items.end(), name) != required->items.end();
      if (key.find_first_of("\"<>\n") != key.npos) {
        throw RequestError(
            "unsupported_schema", param,
            fmt::format("{}: the name of a parameter has \", <, > or a new line", param));
      }
      const NodeId after = parameter(from, key, schema);
      if (!must) builder_.empty_edge(from, after);
      from = after;
    }
    return from;
  }

  // A string stands as it is, everything else as JSON.
  NodeId parameter(NodeId from, const std::string& key, const JsonValue& schema) {
    const NodeId tag = open_tag(from, "parameter name=\"" + key + "\" string=\"");
    const NodeId end = builder_.node();
    const NodeId begin = builder_.node();  // of a string; a tag before nothing would be a dead end
    const auto bare = schemas_.back()->bare_strings(begin, schema);
    if (bare) {
      builder_.empty_edge(builder_.literal(tag, "true\">"), begin);
      builder_.empty_edge(*bare, end);
    }
    if (!bare || !strings_only(schema)) {
      builder_.empty_edge(schemas_.back()->value(builder_.literal(tag, "false\">"), schema), end);
    }
    return close_tag(end, "parameter>\n");
  }

  static bool strings_only(const JsonValue& schema) {
    if (const JsonValue* type = schema.find("type")) {
      const bool nullable = schema.find("nullable") != nullptr;
      return type->is_string() && type->text == "string" && !nullable;
    }
    const JsonValue* values = schema.find("enum");
    return values != nullptr && values->is_array() &&
           std::all_of(values->items.begin(), values->items.end(),
                       [](const JsonValue& value) { return value.is_string(); });
  }

  AutomatonBuilder& builder_;
  const ToolGrammarOptions& options_;
  std::vector<std::unique_ptr<SchemaGrammar>> schemas_;
};

}  // namespace

Automaton tool_grammar(const std::vector<ToolDefinition>& tools,
                       const ToolGrammarOptions& options) {
  AutomatonBuilder builder;
  ToolWriter writer(builder, options);
  const RuleId rule = builder.declare();
  NodeId from = builder.begin(rule);
  if (options.text_allowed) {
    from = writer.text(from);
    builder.end(from);
  } else if (!options.inside_block) {
    from = builder.literal(from, "\n\n");
  }
  builder.end(writer.calls(from, tools));
  writer.finish();
  try {
    return builder.finish();
  } catch (const Error& error) {
    throw RequestError("unsupported_schema", "tools", fmt::format("tools: {}", error.what()));
  }
}

}  // namespace dsv4
