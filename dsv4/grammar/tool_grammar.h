// Tool calls as an automaton (docs/spec/serving.md 3.4): what the parser of calls reads without a
// repair.
//
//   calls     = "<◆tool_calls>\n" invoke+ "</◆tool_calls>"
//   invoke    = '<◆invoke name="N">\n' parameter* "</◆invoke>\n"
//   parameter = '<◆parameter name="K" string="true">' text "</◆parameter>\n"
//             | '<◆parameter name="K" string="false">' JSON "</◆parameter>\n"
//
// With a tool's schema, parameters come in its order, required ones always, and values are valid
// under it; otherwise only the tags and the tool's name are fixed.

#pragma once

#include <string>
#include <vector>

#include "dsv4/chat/conversation.h"
#include "dsv4/grammar/automaton.h"

namespace dsv4 {

enum class ToolSchemas {
  kNone,    // tags and names of all tools
  kStrict,  // the schemas of tools with strict: true
  kUsable,  // all schemas; of tools that are not strict, only those that are supported
  kAll,
};

struct ToolGrammarOptions {
  ToolSchemas schemas = ToolSchemas::kStrict;
  std::string only;           // the one tool that may be called; empty: any
  bool single = false;        // one call
  bool inside_block = false;  // the prompt has opened the block
  bool text_allowed = false;  // text may come instead of calls, or before them
};

// RequestError where a schema is not supported. The tools must outlive the call only.
Automaton tool_grammar(const std::vector<ToolDefinition>& tools, const ToolGrammarOptions& options);

}  // namespace dsv4
