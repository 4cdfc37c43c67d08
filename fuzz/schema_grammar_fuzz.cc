// A JSON Schema from outside: one byte for the white space, up to 64 that steer a text, a zero
// byte, the schema. What it accepts is JSON; a strict tool's schema is made of the same bytes.

#include "dsv4/chat/tools.h"
#include "dsv4/grammar/schema_grammar.h"
#include "dsv4/grammar/tool_grammar.h"
#include "fuzz/grammar_run.h"

namespace dsv4 {
namespace {

void check_format(const JsonValue& schema, JsonSpaces spaces, std::string_view choices) {
  const auto text = fuzz::steered_text(json_schema_grammar(schema, spaces, "schema"), choices);
  if (text) fuzz::require(try_parse_json(*text).has_value());
}

void check_tool(const JsonValue& schema, std::string_view choices) {
  const std::vector<ToolDefinition> tools = {{.name = "f",
                                              .description = "",
                                              .parameters = strict_schema(schema, "tools"),
                                              .strict = true}};
  fuzz::steered_text(
      tool_grammar(tools, {.schemas = ToolSchemas::kStrict, .single = true, .inside_block = true}),
      choices);
}

}  // namespace
}  // namespace dsv4

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace dsv4;
  if (size == 0) return 0;
  const std::string_view rest = fuzz::text(data + 1, size - 1);
  const size_t zero = rest.find('\0');
  if (zero == rest.npos) return 0;
  const std::string_view choices = rest.substr(0, zero);
  const auto spaces = data[0] % 2 == 0 ? JsonSpaces::kNone : JsonSpaces::kSome;
  fuzz::allow_limits([&] {
    const JsonValue schema = parse_json(rest.substr(zero + 1), "schema");
    if (data[0] & 2) {
      check_tool(schema, choices);
    } else {
      check_format(schema, spaces, choices);
    }
  });
  return 0;
}
