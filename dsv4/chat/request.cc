#include "dsv4/chat/request.h"

#include <charconv>

#include "dsv4/chat/messages.h"
#include "dsv4/chat/request_error.h"
#include "dsv4/chat/tools.h"

namespace dsv4 {
namespace {

// A count in a JSON number.
int64_t read_budget(const Field& budget) {
  int64_t count = 0;
  const std::string& digits = budget.json().text;
  const bool whole =
      budget.json().is(JsonValue::Kind::kInteger) &&
      std::from_chars(digits.data(), digits.data() + digits.size(), count).ec == std::errc();
  if (!whole || count < 1) refuse(budget.path(), "want a positive integer");
  return count;
}

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
  const std::string& type = format.at("type").string();
  if (type == "json_object") {
    out.kind = ResponseFormat::Kind::kJsonObject;
  } else if (type == "json_schema") {
    const Field schema = format.at("json_schema");
    out.kind = ResponseFormat::Kind::kJsonSchema;
    out.schema = schema.at("schema").object();
    out.strict = schema.at("strict").boolean(false);
  } else if (type == "regex") {
    const Field pattern = format.at("pattern");
    out.kind = ResponseFormat::Kind::kRegex;
    out.regex = (pattern.present() ? pattern : format.at("regex")).string();
  } else if (type != "text") {
    refuse(format.path() + ".type", "want text, json_object, json_schema or regex");
  }
}

// A regular expression for one of these texts.
std::string choice_regex(const Field& choices) {
  std::string regex;
  for (size_t i = 0; i < choices.list(); ++i) {
    regex += i > 0 ? "|" : "";
    for (const char c : choices.at(i).string()) {
      if (std::string_view("\\^$.|?*+()[]{}/-").find(c) != std::string_view::npos) regex += '\\';
      regex += c;
    }
  }
  if (regex.empty()) refuse(choices.path(), "want texts");
  return "(?:" + regex + ")";
}

// One of vLLM's forms; `prefix` is "guided_", or empty inside structured_outputs.
void read_guided(const Field& body, const std::string& prefix, ResponseFormat& out) {
  if (const Field schema = body.at(prefix + "json"); schema.present()) {
    out.param = schema.path();
    out.kind = ResponseFormat::Kind::kJsonSchema;
    out.schema =
        schema.json().is_string() ? parse_json(schema.string(), schema.path()) : schema.object();
    if (!out.schema.is_object()) refuse(schema.path(), "want a JSON object");
  }
  if (const Field regex = body.at(prefix + "regex"); regex.present()) {
    out.param = regex.path();
    out.kind = ResponseFormat::Kind::kRegex;
    out.regex = regex.string();
  }
  if (const Field grammar = body.at(prefix + "grammar"); grammar.present()) {
    out.param = grammar.path();
    out.kind = ResponseFormat::Kind::kGrammar;
    out.grammar = grammar.string();
  }
  if (const Field choices = body.at(prefix + "choice"); choices.present()) {
    out.param = choices.path();
    out.kind = ResponseFormat::Kind::kRegex;
    out.regex = choice_regex(choices);
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
  const Field thinking = body.at("thinking");
  if (thinking.present() && thinking.at("budget_tokens").present())
    conversation.thinking_budget = read_budget(thinking.at("budget_tokens"));
  if (const auto type = thinking_type(thinking)) {
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

ResponseFormat read_response_format(const Field& body) {
  ResponseFormat format;
  if (const Field wanted = body.at("response_format"); wanted.present())
    read_format(wanted, format);
  read_guided(body, "guided_", format);
  if (const Field outputs = body.at("structured_outputs"); outputs.present()) {
    outputs.object();
    if (const Field tag = outputs.at("structural_tag"); tag.present())
      throw RequestError("unsupported_value", tag.path(), tag.path() + ": is not supported");
    read_guided(outputs, "", format);
    if (outputs.at("json_object").boolean(false)) format.kind = ResponseFormat::Kind::kJsonObject;
  }
  return format;
}

Conversation read_chat_request(const JsonValue& body_json, const ChatOptions& options) {
  const Field body(&body_json, "");
  Conversation conversation;
  read_effort(body, options, conversation);
  read_tools(body, conversation);
  conversation.format = read_response_format(body);
  read_messages(body, options, conversation);
  return conversation;
}

}  // namespace dsv4
