#include "dsv4/chat/encoder_level.h"

#include <algorithm>

#include "dsv4/chat/fixed_texts.h"
#include "dsv4/chat/messages.h"
#include "dsv4/chat/render.h"
#include "dsv4/chat/request_error.h"
#include "dsv4/chat/tools.h"

namespace dsv4 {
namespace {

enum class Role { kSystem, kDeveloper, kUser, kAssistant, kReminder };

struct EncoderMessage {
  Role role = Role::kUser;
  std::string text, reasoning;
  std::vector<UserBlock> blocks;  // kUser: what `text` is joined from
  std::vector<std::string> tool_schemas;
  ResponseFormat format;
  std::vector<ToolCall> calls;
  std::optional<Marker> task;
  bool without_eos = false;
};

Marker task_marker(const Field& task) {
  constexpr Marker kTasks[] = {Marker::kAction, Marker::kQuery, Marker::kAuthority,
                               Marker::kDomain, Marker::kTitle, Marker::kReadUrl};
  for (const Marker marker : kTasks) {
    if (spelling(marker) == "<｜" + task.string() + "｜>") return marker;
  }
  refuse(task.path(), "want action, query, authority, domain, title or read_url");
}

Role role_of(const Field& role) {
  const std::string& word = role.string();
  if (word == "system") return Role::kSystem;
  if (word == "developer") return Role::kDeveloper;
  if (word == "user" || word == "tool") return Role::kUser;
  if (word == "assistant") return Role::kAssistant;
  if (word == "latest_reminder") return Role::kReminder;
  refuse(role.path(), "want system, developer, user, assistant, tool or latest_reminder");
}

// Text, or a list of parts of which those that are no text leave a note.
std::string text_of(const Field& content) {
  if (!content.present() || !content.json().is_array()) return content.text();
  std::vector<std::string> texts;
  for (size_t i = 0; i < content.list(); ++i) {
    const Field part = content.at(i);
    const std::string& type = part.at("type").string();
    texts.push_back(type == "text" ? part.at("text").string_or("")
                                   : fmt::format("[Unsupported {}]", type));
  }
  return join_blocks(texts);
}

EncoderMessage read_message(const Field& field) {
  EncoderMessage message;
  message.role = role_of(field.at("role"));
  message.text = text_of(field.at("content"));
  message.reasoning = field.at("reasoning_content").string_or("");
  const Field tools = field.at("tools");
  for (size_t i = 0; tools.present() && i < tools.list(); ++i)
    message.tool_schemas.push_back(to_json(tools.at(i).at("function").object()));
  if (const Field format = field.at("response_format"); format.present()) {
    message.format.kind = ResponseFormat::Kind::kJsonSchema;
    message.format.schema = format.object();
  }
  message.calls = read_tool_calls(field.at("tool_calls"), true);
  if (const Field task = field.at("task"); task.present()) message.task = task_marker(task);
  message.without_eos = field.at("wo_eos").boolean(false);
  if (message.role == Role::kDeveloper && message.text.empty())
    refuse(field.path() + ".content", "a developer message must not be empty");
  return message;
}

// Runs of user and tool messages as one message; a user message does not join one with a task.
std::vector<EncoderMessage> merged(const Field& list) {
  std::vector<EncoderMessage> out;
  for (size_t i = 0; i < list.list(); ++i) {
    const Field field = list.at(i);
    EncoderMessage message = read_message(field);
    if (message.role != Role::kUser) {
      out.push_back(std::move(message));
      continue;
    }
    const bool result = field.at("role").string() == "tool";
    UserBlock block = result ? result_block(field.at("tool_call_id").string_or(""), message.text)
                             : UserBlock{.text = message.text};
    const bool joins =
        !out.empty() && out.back().role == Role::kUser && (result || !out.back().task);
    if (!joins) {
      // Nothing else of a user message counts.
      out.push_back({.task = result ? std::nullopt : message.task,
                     .without_eos = !result && message.without_eos});
    }
    out.back().blocks.push_back(std::move(block));
  }
  return out;
}

void join_user_blocks(std::vector<EncoderMessage>& messages) {
  std::vector<ToolCall> calls;
  for (EncoderMessage& message : messages) {
    if (message.role == Role::kAssistant && !message.calls.empty()) calls = message.calls;
    if (message.role != Role::kUser) continue;
    sort_results(calls, message.blocks);
    std::vector<std::string> texts;
    for (UserBlock& block : message.blocks) texts.push_back(std::move(block.text));
    message.text = join_blocks(texts);
  }
}

bool is_user(const EncoderMessage& message) {
  return message.role == Role::kUser || message.role == Role::kDeveloper;
}

// -1 without any.
int64_t last_user(const std::vector<EncoderMessage>& messages) {
  auto i = static_cast<int64_t>(messages.size()) - 1;
  while (i >= 0 && !is_user(messages[static_cast<size_t>(i)])) --i;
  return i;
}

class EncoderRenderer {
 public:
  EncoderRenderer(std::vector<EncoderMessage> messages, bool thinking, bool drop)
      : messages_(std::move(messages)), thinking_(thinking) {
    for (const EncoderMessage& message : messages_) drop = drop && message.tool_schemas.empty();
    drop_ = drop && thinking;
    if (drop_) drop_old_developers();
    last_user_ = last_user(messages_);
  }

  void run(Prompt& prompt) const {
    for (size_t i = 0; i < messages_.size(); ++i) {
      add_message(prompt, i);
      add_header(prompt, i);
    }
  }

 private:
  void drop_old_developers() {
    const int64_t last = last_user(messages_);
    std::vector<EncoderMessage> kept;
    for (size_t i = 0; i < messages_.size(); ++i) {
      if (messages_[i].role != Role::kDeveloper || static_cast<int64_t>(i) >= last)
        kept.push_back(std::move(messages_[i]));
    }
    messages_ = std::move(kept);
  }

  void add_message(Prompt& prompt, size_t i) const {
    const EncoderMessage& message = messages_[i];
    if (is_user(message)) prompt.add(Marker::kUser);
    if (message.role == Role::kReminder) prompt.add(Marker::kReminder);
    if (message.role == Role::kAssistant) return add_assistant(prompt, i);
    prompt.add_text(message.text);
    if (message.role != Role::kSystem && message.role != Role::kDeveloper) return;
    if (!message.tool_schemas.empty()) add_tools(prompt, message.tool_schemas);
    add_format(prompt, message.format);
  }

  void add_assistant(Prompt& prompt, size_t i) const {
    const EncoderMessage& message = messages_[i];
    const bool answers_task = i > 0 && messages_[i - 1].task.has_value();
    const bool keeps = !drop_ || static_cast<int64_t>(i) > last_user_;
    if (thinking_ && !answers_task && keeps) {
      prompt.add_text(message.reasoning);
      prompt.add(Marker::kThinkEnd);
    }
    prompt.add_text(message.text);
    add_calls(prompt, message.calls, true);
    if (!message.without_eos) prompt.add(Marker::kEos);
  }

  // What follows a message: the header of the answer, or the token of a task.
  void add_header(Prompt& prompt, size_t i) const {
    const EncoderMessage& message = messages_[i];
    if (i + 1 < messages_.size()) {
      const Role next = messages_[i + 1].role;
      if (next != Role::kAssistant && next != Role::kReminder) return;
    }
    const bool in_turn = !drop_ || static_cast<int64_t>(i) >= last_user_;
    const bool think = thinking_ && (message.task || in_turn);
    if (message.task ? message.task == Marker::kAction : is_user(message)) {
      prompt.add(Marker::kAssistant);
      prompt.add(think ? Marker::kThink : Marker::kThinkEnd);
      prompt.stage = think ? OutputStage::kReason : OutputStage::kContent;
    }
    if (message.task) {
      prompt.add(*message.task);
      prompt.stage = OutputStage::kContent;
    }
  }

  std::vector<EncoderMessage> messages_;
  bool thinking_, drop_ = false;
  int64_t last_user_ = -1;
};

// As the API's; also the encoder's own thinking_mode, and a plain boolean.
bool read_thinking(const Field& body, const ChatOptions& options, Conversation& settings) {
  JsonValue copy = JsonValue::object();
  for (const auto& [key, value] : body.object().members) {
    const bool plain = key == "thinking" && value.is_bool();
    if (key != "messages" && !plain) copy.add(key, value);
  }
  read_effort(Field(&copy, ""), options, settings);
  const Field mode = body.at("thinking_mode"), plain = body.at("thinking");
  if (plain.present() && plain.json().is_bool()) return plain.json().boolean;
  if (!mode.present()) return settings.thinking;
  if (mode.string() != "thinking" && mode.string() != "chat")
    refuse("thinking_mode", "want thinking or chat");
  return mode.string() == "thinking";
}

}  // namespace

Prompt render_encoder_level(const JsonValue& body_json, const ChatOptions& options) {
  const Field body(&body_json, "");
  Conversation settings;
  const bool thinking = read_thinking(body, options, settings);
  std::vector<EncoderMessage> messages = merged(body.at("messages"));
  join_user_blocks(messages);
  Prompt prompt;
  prompt.add(Marker::kBos);
  // Without an effort there is no text at this level, whatever the profile.
  if (thinking && settings.effort != Effort::kAbsent)
    prompt.add_text(effort_text(options.profile, settings.effort));
  EncoderRenderer(std::move(messages), thinking, settings.drop_thinking).run(prompt);
  return prompt;
}

Prompt render_completion(const JsonValue& body_json) {
  const Field body(&body_json, "");
  const std::string& text = body.at("prompt").string();
  const Field suffix = body.at("suffix");
  const bool parse_special = body.at("parse_special").boolean(true);
  Prompt prompt;
  const bool has_bos = parse_special && text.starts_with(spelling(Marker::kBos));
  if (!has_bos) prompt.add(Marker::kBos);
  if (suffix.present()) prompt.add(Marker::kFimBegin);
  if (parse_special) {
    prompt.add_template(text);
  } else {
    prompt.add_text(text);
  }
  if (suffix.present()) {
    prompt.add(Marker::kFimHole);
    prompt.add_text(suffix.string());
    prompt.add(Marker::kFimEnd);
  }
  return prompt;
}

}  // namespace dsv4
