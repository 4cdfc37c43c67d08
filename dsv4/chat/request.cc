#include "dsv4/chat/request.h"

#include "dsv4/chat/messages.h"
#include "dsv4/chat/request_error.h"
#include "dsv4/chat/tools.h"

namespace dsv4 {
namespace {

// thinking.type, which wins over everything else; nothing where it is absent.
std::optional<bool> thinking_type(const Field& thinking) {
  if (!thinking.present()) return std::nullopt;
  const Field type = thinking.at("type");
  if (!type.present()) return std::nullopt;
  const std::string& word = type.string();
  if (word != "enabled" && word != "adaptive" && word != "disabled")
    refuse(type.path(), "want enabled, adaptive or disabled");
  return word != "disabled";
}

void read_format(const Field& format, ResponseFormat& out) {
  if (!format.present()) return;
  const std::string& type = format.at("type").string();
  if (type == "json_object") {
    out.kind = ResponseFormat::Kind::kJsonObject;
  } else if (type == "json_schema") {
    out.kind = ResponseFormat::Kind::kJsonSchema;
    out.schema = format.at("json_schema").at("schema").object();
  } else if (type == "regex") {
    const Field pattern = format.at("pattern");
    out.kind = ResponseFormat::Kind::kRegex;
    out.regex = (pattern.present() ? pattern : format.at("regex")).string();
  } else if (type != "text") {
    refuse(format.path() + ".type", "want text, json_object, json_schema or regex");
  }
}

}  // namespace

void read_effort(const Field& body, const ChatOptions& options, Conversation& conversation) {
  const Field kwargs = body.at("chat_template_kwargs");
  const auto from_kwargs = [&](const char* key) {
    return kwargs.present() ? kwargs.at(key) : Field(nullptr, key);
  };
  Field effort = body.at("reasoning_effort");
  if (!effort.present()) effort = from_kwargs("reasoning_effort");
  if (effort.present()) {
    const auto known = effort_of(effort.string());
    if (!known) refuse(effort.path(), "want none, minimal, low, medium, high, xhigh, max or ultra");
    conversation.effort = *known;
  }
  Field wanted = from_kwargs("thinking");
  if (!wanted.present()) wanted = from_kwargs("enable_thinking");
  if (const auto type = thinking_type(body.at("thinking"))) {
    conversation.thinking = *type;
  } else if (wanted.present()) {
    conversation.thinking = wanted.boolean(true);
  } else {
    conversation.thinking = conversation.effort != Effort::kNone && options.default_thinking;
  }
  if (conversation.effort == Effort::kNone) conversation.effort = Effort::kAbsent;
  const Field drop = body.at("drop_thinking");
  conversation.drop_thinking = (drop.present() ? drop : from_kwargs("drop_thinking")).boolean(true);
  conversation.profile = options.profile;
}

Conversation read_chat_request(const JsonValue& body_json, const ChatOptions& options) {
  const Field body(&body_json, "");
  Conversation conversation;
  read_effort(body, options, conversation);
  read_tools(body, conversation);
  read_format(body.at("response_format"), conversation.format);
  read_messages(body, options, conversation);
  return conversation;
}

}  // namespace dsv4
