#include "dsv4/chat/translated.h"

#include <algorithm>

#include "dsv4/chat/fields.h"

namespace dsv4 {
namespace {

// Content of an item: a string, or parts whose type is one of `types`.
std::string item_text(const Field& content, std::initializer_list<std::string_view> types) {
  if (!content.present()) return "";
  if (content.json().is_string()) return content.string();
  std::vector<std::string> texts;
  for (size_t i = 0; i < content.list(); ++i) {
    const Field part = content.at(i);
    const std::string& type = part.at("type").string();
    if (std::find(types.begin(), types.end(), type) == types.end()) {
      throw RequestError("unsupported_content", part.path(),
                         fmt::format("{}: content of type {} is not supported", part.path(), type));
    }
    texts.push_back(part.at(type == "refusal" ? "refusal" : "text").string());
  }
  return join_blocks(texts);
}

class ResponsesTranslator {
 public:
  ResponsesTranslator(const JsonValue& body, const Unseal& unseal)
      : body_(&body, ""), unseal_(unseal) {}
  Translated run();

 private:
  void refuse_conversations() const;
  void read_item(const Field& item);
  void read_message(const Field& item);
  void read_reasoning(const Field& item);
  void read_call(const Field& item, bool custom);
  void read_output(const Field& item);
  // Reasoning, text and calls that follow one another are one assistant message.
  void end_assistant();
  void read_include();
  void read_tools();
  void read_tool(const Field& tool, const std::string& prefix, JsonValue& list);
  void read_choice(const Field& choice);
  void read_allowed(const Field& choice);
  void read_format();

  const Field body_;
  const Unseal& unseal_;
  Translated out_;

  struct Assistant {
    std::string path;
    std::optional<std::string> reasoning;
    std::vector<std::string> texts;
    JsonValue calls = JsonValue::array();
  };
  std::optional<Assistant> assistant_;
  Assistant& assistant(const Field& item) {
    if (!assistant_) assistant_ = Assistant{.path = item.path()};
    return *assistant_;
  }
};

void ResponsesTranslator::refuse_conversations() const {
  for (const char* key : {"previous_response_id", "conversation", "prompt"}) {
    if (body_.at(key).present())
      refuse(key, "is not supported: this server keeps no conversations, send the whole input");
  }
  if (body_.at("background").boolean(false)) refuse("background", "is not supported");
}

Translated ResponsesTranslator::run() {
  refuse_conversations();
  out_.chat.add("messages", JsonValue::array());
  if (const Field instructions = body_.at("instructions"); instructions.present())
    out_.add_message(text_message("system", instructions.string()), "instructions");
  const Field input = body_.at("input");
  if (input.present() && input.json().is_string()) {
    out_.add_message(text_message("user", input.string()), "input");
  } else {
    const size_t count = input.list();
    for (size_t i = 0; i < count; ++i) read_item(input.at(i));
    end_assistant();
  }
  read_tools();
  read_choice(body_.at("tool_choice"));
  read_format();
  read_include();
  if (const Field reasoning = body_.at("reasoning"); reasoning.present())
    out_.copy(reasoning.at("effort"), "reasoning_effort");
  const std::string truncation = body_.at("truncation").string_or("disabled");
  if (truncation == "auto") out_.ignored.push_back("truncation");
  if (truncation != "auto" && truncation != "disabled")
    refuse("truncation", "want auto or disabled");
  out_.copy(body_.at("max_output_tokens"), "max_completion_tokens");
  for (const char* key : {"temperature", "top_p", "stream", "parallel_tool_calls", "max_tool_calls",
                          "seed", "user", "safety_identifier", "prompt_cache_key", "cache_salt",
                          "priority", "deadline_ms", "speculate"})
    out_.copy(body_.at(key), key);
  if (body_.at("store").boolean(false)) out_.ignored.push_back("store");
  return std::move(out_);
}

// Log probabilities are given for `include` or for a number of likeliest tokens.
void ResponsesTranslator::read_include() {
  const Field include = body_.at("include"), top = body_.at("top_logprobs");
  bool logprobs = top.present();
  for (size_t i = 0; include.present() && i < include.list(); ++i) {
    const Field item = include.at(i);
    const std::string& what = item.string();
    if (what == "message.output_text.logprobs") {
      logprobs = true;
    } else if (what != "reasoning.encrypted_content") {
      out_.ignored.push_back(item.path());
    }
  }
  if (logprobs) out_.chat.add("logprobs", JsonValue::of_bool(true));
  out_.copy(top, "top_logprobs");
}

void ResponsesTranslator::read_item(const Field& item) {
  const std::string type = item.at("type").string_or("message");
  if (type == "message") {
    read_message(item);
  } else if (type == "reasoning") {
    read_reasoning(item);
  } else if (type == "function_call" || type == "custom_tool_call") {
    read_call(item, type == "custom_tool_call");
  } else if (type == "function_call_output" || type == "custom_tool_call_output") {
    read_output(item);
  } else if (type == "item_reference") {
    refuse(item.path(), "item_reference is not supported: this server keeps no items");
  } else {
    throw RequestError("unsupported_content", item.path(),
                       fmt::format("{}: items of type {} are not supported", item.path(), type));
  }
}

void ResponsesTranslator::read_message(const Field& item) {
  const std::string& role = item.at("role").string();
  const std::string text =
      item_text(item.at("content"), {"input_text", "output_text", "text", "refusal"});
  if (role == "assistant") {
    // Two messages in a row are two turns, unless only reasoning came before.
    if (assistant_ && (!assistant_->texts.empty() || !assistant_->calls.items.empty()))
      end_assistant();
    assistant(item).texts.push_back(text);
    return;
  }
  if (role != "user" && role != "system" && role != "developer")
    refuse(item.path() + ".role", "want user, assistant, system or developer");
  end_assistant();
  out_.add_message(text_message(role, text), item.path());
}

void ResponsesTranslator::read_reasoning(const Field& item) {
  std::string text = item_text(item.at("content"), {"reasoning_text", "text"});
  const Field sealed = item.at("encrypted_content");
  if (text.empty() && sealed.present()) text = unseal_(sealed.string()).value_or("");
  if (assistant_ && (!assistant_->texts.empty() || !assistant_->calls.items.empty()))
    end_assistant();
  Assistant& turn = assistant(item);
  turn.reasoning = turn.reasoning ? *turn.reasoning + "\n\n" + text : text;
}

void ResponsesTranslator::read_call(const Field& item, bool custom) {
  JsonValue function = JsonValue::object();
  const std::string name_space = item.at("namespace").string_or("");
  const std::string name = item.at("name").string();
  function.add("name", JsonValue::of_string(name_space.empty() ? name : name_space + "__" + name));
  if (custom) {
    JsonValue arguments = JsonValue::object();
    arguments.add("input", JsonValue::of_string(item.at("input").string()));
    function.add("arguments", std::move(arguments));
  } else {
    function.add("arguments", JsonValue::of_string(item.at("arguments").string()));
  }
  JsonValue call = JsonValue::object();
  call.add("id", JsonValue::of_string(item.at("call_id").string()));
  call.add("function", std::move(function));
  assistant(item).calls.items.push_back(std::move(call));
}

void ResponsesTranslator::read_output(const Field& item) {
  end_assistant();
  JsonValue result =
      text_message("tool", item_text(item.at("output"), {"input_text", "output_text"}));
  result.add("tool_call_id", JsonValue::of_string(item.at("call_id").string()));
  out_.add_message(std::move(result), item.path());
}

void ResponsesTranslator::end_assistant() {
  if (!assistant_) return;
  Assistant turn = *std::exchange(assistant_, std::nullopt);
  JsonValue out = text_message("assistant", join_blocks(turn.texts));
  if (turn.reasoning) out.add("reasoning_content", JsonValue::of_string(*turn.reasoning));
  if (!turn.calls.items.empty()) out.add("tool_calls", std::move(turn.calls));
  out_.add_message(std::move(out), std::move(turn.path));
}

void ResponsesTranslator::read_tools() {
  const Field tools = body_.at("tools");
  if (!tools.present()) return;
  JsonValue list = JsonValue::array();
  for (size_t i = 0; i < tools.list(); ++i) read_tool(tools.at(i), "", list);
  out_.chat.add("tools", std::move(list));
}

void ResponsesTranslator::read_tool(const Field& tool, const std::string& prefix, JsonValue& list) {
  const std::string& type = tool.at("type").string();
  if (type == "namespace") {
    const Field inner = tool.at("tools");
    for (size_t i = 0; i < inner.list(); ++i)
      read_tool(inner.at(i), tool.at("name").string() + "__", list);
    return;
  }
  if (type != "function" && type != "custom") {
    out_.ignored.push_back(tool.path());
    return;
  }
  const std::string name = prefix + tool.at("name").string();
  JsonValue function = JsonValue::object();
  function.add("name", JsonValue::of_string(name));
  function.add("description", JsonValue::of_string(tool.at("description").string_or("")));
  if (type == "custom") {
    // The text of the call is free: a grammar of it would have to hold inside the tags.
    if (const Field format = tool.at("format");
        format.present() && format.at("type").string() != "text")
      out_.ignored.push_back(format.path());
    out_.custom_tools.insert(name);
    JsonValue input = JsonValue::object(), properties = JsonValue::object();
    JsonValue schema = JsonValue::object(), required = JsonValue::array();
    input.add("type", JsonValue::of_string("string"));
    properties.add("input", std::move(input));
    required.items.push_back(JsonValue::of_string("input"));
    schema.add("type", JsonValue::of_string("object"));
    schema.add("properties", std::move(properties));
    schema.add("required", std::move(required));
    function.add("parameters", std::move(schema));
  } else {
    if (const Field parameters = tool.at("parameters"); parameters.present())
      function.add("parameters", parameters.json());
    if (const Field strict = tool.at("strict"); strict.present())
      function.add("strict", strict.json());
  }
  JsonValue one = JsonValue::object();
  one.add("type", JsonValue::of_string("function"));
  one.add("function", std::move(function));
  list.items.push_back(std::move(one));
}

void ResponsesTranslator::read_choice(const Field& choice) {
  if (!choice.present()) return;
  if (choice.json().is_string()) {
    out_.chat.add("tool_choice", choice.json());
    return;
  }
  const std::string& type = choice.at("type").string();
  if (type == "allowed_tools") return read_allowed(choice);
  if (type != "function" && type != "custom")
    refuse("tool_choice.type", "want function, custom or allowed_tools");
  JsonValue function = JsonValue::object();
  function.add("name", JsonValue::of_string(choice.at("name").string()));
  JsonValue named = JsonValue::object();
  named.add("type", JsonValue::of_string("function"));
  named.add("function", std::move(function));
  out_.chat.add("tool_choice", std::move(named));
}

// The chat form has one more level and `function` around each name.
void ResponsesTranslator::read_allowed(const Field& choice) {
  JsonValue names = JsonValue::array();
  const Field tools = choice.at("tools");
  for (size_t i = 0; i < tools.list(); ++i) {
    const std::string& type = tools.at(i).at("type").string();
    if (type != "function" && type != "custom")
      continue;  // hosted tools are not there to be called
    JsonValue function = JsonValue::object(), one = JsonValue::object();
    function.add("name", JsonValue::of_string(tools.at(i).at("name").string()));
    one.add("type", JsonValue::of_string("function"));
    one.add("function", std::move(function));
    names.items.push_back(std::move(one));
  }
  const std::string mode = choice.at("mode").string_or("auto");
  if (names.items.empty() && mode == "auto") {
    out_.chat.add("tool_choice", JsonValue::of_string("none"));
    return;
  }
  JsonValue allowed = JsonValue::object(), wanted = JsonValue::object();
  allowed.add("mode", JsonValue::of_string(mode));
  allowed.add("tools", std::move(names));
  wanted.add("type", JsonValue::of_string("allowed_tools"));
  wanted.add("allowed_tools", std::move(allowed));
  out_.chat.add("tool_choice", std::move(wanted));
}

void ResponsesTranslator::read_format() {
  const Field text = body_.at("text");
  if (!text.present()) return;
  const Field format = text.at("format");
  if (!format.present()) return;
  const std::string& type = format.at("type").string();
  JsonValue wanted = JsonValue::object();
  wanted.add("type", JsonValue::of_string(type));
  if (type == "json_schema") {
    JsonValue schema = JsonValue::object();
    schema.add("schema", format.at("schema").object());
    if (const Field strict = format.at("strict"); strict.present())
      schema.add("strict", strict.json());
    wanted.add("json_schema", std::move(schema));
  } else if (type == "regex") {
    wanted.add("pattern", JsonValue::of_string(format.at("pattern").string()));
  }
  out_.chat.add("response_format", std::move(wanted));
  out_.field_paths["response_format"] = "text.format";
}

}  // namespace

Translated chat_of_responses(const JsonValue& body, const Unseal& unseal) {
  return ResponsesTranslator(body, unseal).run();
}

}  // namespace dsv4
