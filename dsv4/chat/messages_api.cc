#include "dsv4/chat/translated.h"

#include "dsv4/chat/fields.h"

namespace dsv4 {
namespace {

[[noreturn]] void unsupported_block(const Field& block, const std::string& type) {
  throw RequestError("unsupported_content", block.path(),
                     fmt::format("{}: content of type {} is not supported", block.path(), type));
}

// A document whose source is plain text: its title, and the text.
std::string document_text(const Field& block) {
  const Field source = block.at("source");
  if (source.at("type").string() != "text")
    unsupported_block(block, "document with a source of type " + source.at("type").string());
  const std::string title = block.at("title").string_or("");
  return (title.empty() ? "" : title + "\n\n") + source.at("data").string();
}

class MessagesTranslator {
 public:
  explicit MessagesTranslator(const JsonValue& body) : body_(&body, "") {}
  Translated run();

 private:
  void read_user(const Field& item);
  void read_assistant(const Field& item, bool last);
  void read_tools();
  void read_choice(const Field& choice);
  void read_effort();

  const Field body_;
  Translated out_;
};

Translated MessagesTranslator::run() {
  out_.chat.add("messages", JsonValue::array());
  if (const Field system = body_.at("system"); system.present())
    out_.add_message(text_message("system", system.text()), "system");
  const Field messages = body_.at("messages");
  const size_t count = messages.list();
  if (count == 0) refuse("messages", "at least one message is required");
  for (size_t i = 0; i < count; ++i) {
    const Field item = messages.at(i);
    const std::string& role = item.at("role").string();
    if (role == "user") {
      read_user(item);
    } else if (role == "assistant") {
      read_assistant(item, i + 1 == count);
    } else if (role == "system") {
      out_.add_message(text_message("user", "<system-reminder>\n" + item.at("content").text() +
                                                "\n</system-reminder>"),
                       item.path());
    } else {
      refuse(item.path() + ".role", "want user, assistant or system");
    }
  }
  read_tools();
  read_choice(body_.at("tool_choice"));
  read_effort();
  out_.copy(body_.at("max_tokens"), "max_tokens");
  out_.copy(body_.at("stop_sequences"), "stop");
  for (const char* key : {"temperature", "top_p", "top_k", "stream", "cache_salt", "priority",
                          "deadline_ms", "speculate"})
    out_.copy(body_.at(key), key);
  return std::move(out_);
}

void MessagesTranslator::read_user(const Field& item) {
  const Field content = item.at("content");
  if (!content.present() || content.json().is_string()) {
    out_.add_message(text_message("user", content.string()), item.path());
    return;
  }
  std::vector<std::string> texts;
  for (size_t i = 0; i < content.list(); ++i) {
    const Field block = content.at(i);
    const std::string& type = block.at("type").string();
    if (type == "text") {
      texts.push_back(block.at("text").string());
    } else if (type == "document") {
      texts.push_back(document_text(block));
    } else if (type == "tool_result") {
      if (!texts.empty()) refuse(block.path(), "tool_result blocks must come first in the content");
      JsonValue result = text_message("tool", block.at("content").text());
      result.add("tool_call_id", JsonValue::of_string(block.at("tool_use_id").string()));
      out_.add_message(std::move(result), block.path());
    } else {
      unsupported_block(block, type);
    }
  }
  if (!texts.empty()) out_.add_message(text_message("user", join_blocks(texts)), item.path());
}

void MessagesTranslator::read_assistant(const Field& item, bool last) {
  const Field content = item.at("content");
  std::vector<std::string> texts, thoughts;
  JsonValue calls = JsonValue::array();
  if (!content.present() || content.json().is_string()) {
    texts.push_back(content.string());
  } else {
    for (size_t i = 0; i < content.list(); ++i) {
      const Field block = content.at(i);
      const std::string& type = block.at("type").string();
      if (type == "text") {
        texts.push_back(block.at("text").string());
      } else if (type == "thinking") {
        thoughts.push_back(block.at("thinking").string());
      } else if (type == "tool_use") {
        JsonValue function = JsonValue::object();
        function.add("name", JsonValue::of_string(block.at("name").string()));
        function.add("arguments", block.at("input").object());
        JsonValue call = JsonValue::object();
        call.add("id", JsonValue::of_string(block.at("id").string()));
        call.add("function", std::move(function));
        calls.items.push_back(std::move(call));
      } else if (type != "redacted_thinking") {
        unsupported_block(block, type);
      }
    }
  }
  JsonValue out = text_message("assistant", join_blocks(texts));
  if (!thoughts.empty()) out.add("reasoning_content", JsonValue::of_string(join_blocks(thoughts)));
  if (last && calls.items.empty()) out.add("prefix", JsonValue::of_bool(true));
  if (!calls.items.empty()) out.add("tool_calls", std::move(calls));
  out_.add_message(std::move(out), item.path());
}

void MessagesTranslator::read_tools() {
  const Field tools = body_.at("tools");
  if (!tools.present()) return;
  JsonValue list = JsonValue::array();
  for (size_t i = 0; i < tools.list(); ++i) {
    const Field tool = tools.at(i);
    const std::string type = tool.at("type").string_or("custom");
    if (type != "custom")
      refuse(tool.path() + ".type",
             "tools without an input_schema are not supported, got {}: declare a tool of your own",
             type);
    JsonValue function = JsonValue::object();
    function.add("name", JsonValue::of_string(tool.at("name").string()));
    function.add("description", JsonValue::of_string(tool.at("description").string_or("")));
    function.add("parameters", tool.at("input_schema").object());
    if (const Field strict = tool.at("strict"); strict.present())
      function.add("strict", strict.json());
    JsonValue one = JsonValue::object();
    one.add("type", JsonValue::of_string("function"));
    one.add("function", std::move(function));
    list.items.push_back(std::move(one));
  }
  out_.chat.add("tools", std::move(list));
}

void MessagesTranslator::read_choice(const Field& choice) {
  if (!choice.present()) return;
  const std::string& type = choice.at("type").string();
  if (type == "auto" || type == "none") {
    out_.chat.add("tool_choice", JsonValue::of_string(type));
  } else if (type == "any") {
    out_.chat.add("tool_choice", JsonValue::of_string("required"));
  } else if (type == "tool") {
    JsonValue function = JsonValue::object();
    function.add("name", JsonValue::of_string(choice.at("name").string()));
    JsonValue named = JsonValue::object();
    named.add("type", JsonValue::of_string("function"));
    named.add("function", std::move(function));
    out_.chat.add("tool_choice", std::move(named));
  } else {
    refuse("tool_choice.type", "want auto, any, tool or none");
  }
  if (choice.at("disable_parallel_tool_use").boolean(false))
    out_.chat.add("parallel_tool_calls", JsonValue::of_bool(false));
}

void MessagesTranslator::read_effort() {
  out_.copy(body_.at("thinking"), "thinking");
  const Field config = body_.at("output_config");
  Field format = body_.at("output_format");
  if (config.present()) {
    if (const Field effort = config.at("effort"); effort.present()) {
      out_.chat.add("reasoning_effort", effort.json());
      out_.field_paths["reasoning_effort"] = "output_config.effort";
    }
    if (config.at("format").present()) format = config.at("format");
  }
  if (!format.present()) return;
  JsonValue schema = JsonValue::object();
  schema.add("schema", format.at("schema").object());
  JsonValue wanted = JsonValue::object();
  wanted.add("type", JsonValue::of_string(format.at("type").string()));
  wanted.add("json_schema", std::move(schema));
  out_.chat.add("response_format", std::move(wanted));
  out_.field_paths["response_format"] = format.path();
}

}  // namespace

Translated chat_of_messages(const JsonValue& body) {
  return MessagesTranslator(body).run();
}

}  // namespace dsv4
