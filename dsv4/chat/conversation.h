// A conversation as the renderer wants it: checked, normalized, nothing of it optional by accident.
// request.h makes one from a request body, render.h makes a prompt of one.

#pragma once

#include <optional>
#include <string>
#include <vector>

#include "dsv4/chat/effort.h"
#include "dsv4/chat/json_value.h"

namespace dsv4 {

// A call in the history. Arguments are always an object: text that was none is the value of its one
// key `arguments`.
struct ToolCall {
  std::string id, name;
  JsonValue arguments = JsonValue::object();
};

struct ChatTurn {
  enum class Kind { kUser, kAssistant, kReminder };
  Kind kind = Kind::kUser;
  std::string text;  // of a user turn: messages and tool results, joined
  // The assistant's only.
  std::optional<std::string> reasoning;
  std::vector<ToolCall> calls;
};

struct ToolDefinition {
  std::string name, description;
  JsonValue parameters = JsonValue::object();
  bool strict = false;
};

enum class ToolChoice { kAuto, kRequired, kNamed };

struct ResponseFormat {
  enum class Kind { kText, kJsonObject, kJsonSchema, kRegex, kGrammar };
  Kind kind = Kind::kText;
  JsonValue schema;     // kJsonSchema
  bool strict = false;  // kJsonSchema: no white space between the parts of the answer
  std::string regex;    // kRegex; the prompt does not show it
  std::string grammar;  // kGrammar: EBNF, not shown either
  std::string param = "response_format";  // the client's field that has it, for errors
};

struct Conversation {
  bool thinking = false;
  Effort effort = Effort::kAbsent;
  EffortProfile profile = EffortProfile::kOfficial;
  int64_t thinking_budget = 0;  // tokens after which the thinking must end; 0: any number
  bool drop_thinking = true;    // past reasoning is not rendered, unless there are tools
  std::string system;
  std::vector<ToolDefinition> tools;  // empty also where the client chose none
  ToolChoice tool_choice = ToolChoice::kAuto;
  std::string chosen_tool;                 // kNamed
  std::vector<std::string> allowed_tools;  // that may be called; empty: all. The prompt shows all.
  ResponseFormat format;
  std::vector<ChatTurn> turns;
  bool continues = false;  // the last turn is the assistant's, and the output goes on with it
};

}  // namespace dsv4
