#include "dsv4/chat/render.h"

#include "dsv4/chat/fixed_texts.h"
#include "dsv4/chat/replay_map.h"

namespace dsv4 {
namespace {

std::string tool_schema(const ToolDefinition& tool) {
  JsonValue schema = JsonValue::object();
  schema.add("name", JsonValue::of_string(tool.name));
  schema.add("description", JsonValue::of_string(tool.description));
  schema.add("parameters", tool.parameters);
  return to_json(schema);
}

void add_parameter(Prompt& prompt, const std::string& key, const JsonValue& value) {
  prompt.add_template("<｜DSML｜parameter name=\"");
  prompt.add_text(key);
  prompt.add_text(value.is_string() ? "\" string=\"true\">" : "\" string=\"false\">");
  prompt.add_text(value.is_string() ? value.text : to_json(value));
  prompt.add_template("</｜DSML｜parameter>");
}

void add_head(Prompt& prompt, const Conversation& conversation) {
  prompt.add(Marker::kBos);
  if (conversation.thinking)
    prompt.add_text(effort_text(conversation.profile, conversation.effort));
  prompt.add_text(conversation.system);
  std::vector<std::string> schemas;
  for (const ToolDefinition& tool : conversation.tools) schemas.push_back(tool_schema(tool));
  if (!schemas.empty()) add_tools(prompt, schemas);
  add_format(prompt, conversation.format);
}

bool shows_reasoning(const Conversation& conversation) {
  return conversation.thinking && (!conversation.tools.empty() || !conversation.drop_thinking);
}

void add_assistant(Prompt& prompt, const Conversation& conversation, const ChatTurn& turn,
                   ReplayMap* replay, const std::string& salt) {
  const bool reasoning = shows_reasoning(conversation);
  prompt.add(Marker::kAssistant);
  prompt.add(reasoning ? Marker::kThink : Marker::kThinkEnd);
  std::shared_ptr<const RecordedTurn> known;
  if (replay != nullptr)
    known = replay->find(turn_key(salt, !conversation.tools.empty(), reasoning, turn));
  if (known != nullptr) {
    prompt.add_ids(known->text, known->ids);
  } else {
    if (reasoning) {
      prompt.add_text(turn.reasoning.value_or(""));
      prompt.add(Marker::kThinkEnd);
    }
    prompt.add_text(turn.text);
    add_calls(prompt, turn.calls, false);
  }
  prompt.add(Marker::kEos);
}

// The last turn, which the output goes on with.
void add_continued(Prompt& prompt, const Conversation& conversation, const ChatTurn& turn) {
  const std::string reasoning = turn.reasoning.value_or("");
  prompt.add(Marker::kAssistant);
  if (conversation.thinking) {
    prompt.add(Marker::kThink);
    prompt.add_text(reasoning);
    if (turn.text.empty()) {
      prompt.stage = OutputStage::kReason;
      prompt.continues = !reasoning.empty();
      return;
    }
  }
  prompt.add(Marker::kThinkEnd);
  prompt.add_text(turn.text);
  prompt.continues = !turn.text.empty();
}

void add_tail(Prompt& prompt, const Conversation& conversation) {
  prompt.add(Marker::kAssistant);
  prompt.add(conversation.thinking ? Marker::kThink : Marker::kThinkEnd);
  if (conversation.thinking) {
    prompt.stage = OutputStage::kReason;
  } else if (!conversation.tools.empty() && conversation.tool_choice != ToolChoice::kAuto) {
    prompt.add_template("\n\n<｜DSML｜tool_calls>\n");
    prompt.stage = OutputStage::kBlock;
  }
}

}  // namespace

void add_tools(Prompt& prompt, const std::vector<std::string>& schemas) {
  prompt.add_text("\n\n");
  prompt.add_template(kToolsHead);
  for (size_t i = 0; i < schemas.size(); ++i) {
    if (i > 0) prompt.add_text("\n");
    prompt.add_text(schemas[i]);
  }
  prompt.add_template(kToolsTail);
}

void add_format(Prompt& prompt, const ResponseFormat& format) {
  if (format.kind == ResponseFormat::Kind::kJsonObject) {
    prompt.add_text("\n\n");
    prompt.add_text(kJsonBlock);
  } else if (format.kind == ResponseFormat::Kind::kJsonSchema) {
    prompt.add_text("\n\n");
    prompt.add_text(kSchemaHead);
    prompt.add_text(to_json(format.schema));
  }
}

void add_calls(Prompt& prompt, const std::vector<ToolCall>& calls, bool empty_line) {
  if (calls.empty()) return;
  prompt.add_template("\n\n<｜DSML｜tool_calls>\n");
  for (size_t i = 0; i < calls.size(); ++i) {
    if (i > 0) prompt.add_text("\n");
    prompt.add_template("<｜DSML｜invoke name=\"");
    prompt.add_text(calls[i].name);
    prompt.add_text("\">\n");
    for (const auto& [key, value] : calls[i].arguments.members) {
      add_parameter(prompt, key, value);
      prompt.add_text("\n");
    }
    if (empty_line && calls[i].arguments.members.empty()) prompt.add_text("\n");
    prompt.add_template("</｜DSML｜invoke>");
  }
  prompt.add_template("\n</｜DSML｜tool_calls>");
}

Prompt render(const Conversation& conversation, ReplayMap* replay, const std::string& salt) {
  Prompt prompt;
  add_head(prompt, conversation);
  for (const ChatTurn& turn : conversation.turns) {
    switch (turn.kind) {
      case ChatTurn::Kind::kUser:
        prompt.add(Marker::kUser);
        prompt.add_text(turn.text);
        break;
      case ChatTurn::Kind::kReminder:
        prompt.add(Marker::kReminder);
        prompt.add_text(turn.text);
        break;
      case ChatTurn::Kind::kAssistant:
        if (conversation.continues && &turn == &conversation.turns.back()) {
          add_continued(prompt, conversation, turn);
        } else {
          add_assistant(prompt, conversation, turn, replay, salt);
        }
        break;
    }
  }
  if (!conversation.continues) add_tail(prompt, conversation);
  return prompt;
}

}  // namespace dsv4
