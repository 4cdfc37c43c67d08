#include "dsv4/chat/ollama_api.h"

#include <algorithm>
#include <deque>

#include "dsv4/chat/fields.h"

namespace dsv4 {
namespace {

// Options of a model that are fields of a request here.
struct Option {
  const char *ollama, *own;
};
constexpr Option kOptions[] = {
    {"temperature", "temperature"},
    {"top_p", "top_p"},
    {"top_k", "top_k"},
    {"min_p", "min_p"},
    {"seed", "seed"},
    {"stop", "stop"},
    {"presence_penalty", "presence_penalty"},
    {"frequency_penalty", "frequency_penalty"},
    {"repeat_penalty", "repetition_penalty"},
};

void refuse_images(const Field& object) {
  const Field images = object.at("images");
  if (!images.present() || images.list() == 0) return;
  throw RequestError("unsupported_content", images.path(),
                     images.path() + ": this model reads text, no images");
}

class OllamaTranslator {
 public:
  explicit OllamaTranslator(const JsonValue& body) : body_(&body, "") {}
  Translated chat();
  Translated generate();

 private:
  struct Call {
    std::string name, id;
  };
  void read_message(const Field& item, bool last);
  JsonValue read_calls(const Field& calls);
  void read_result(const Field& item);
  void read_shared();
  void read_options();
  void read_format();
  void read_think();

  const Field body_;
  Translated out_;
  std::deque<Call> unanswered_;
  size_t num_calls_ = 0;
};

Translated OllamaTranslator::chat() {
  out_.chat.add("messages", JsonValue::array());
  const Field messages = body_.at("messages");
  const size_t count = messages.list();
  for (size_t i = 0; i < count; ++i) read_message(messages.at(i), i + 1 == count);
  out_.copy(body_.at("tools"), "tools");
  read_think();
  read_shared();
  return std::move(out_);
}

Translated OllamaTranslator::generate() {
  refuse_images(body_);
  for (const char* key : {"template", "context"}) {
    const Field field = body_.at(key);
    const bool empty = field.present() && (field.json() == JsonValue::of_string("") ||
                                           field.json() == JsonValue::array());
    if (field.present() && !empty)
      throw RequestError("unsupported_value", key,
                         fmt::format("{}: is not supported: /api/chat takes conversations", key));
  }
  const std::string suffix = body_.at("suffix").string_or("");
  out_.completion = body_.at("raw").boolean(false) || !suffix.empty();
  if (out_.completion) {
    out_.copy(body_.at("prompt"), "prompt");
    if (!suffix.empty()) out_.copy(body_.at("suffix"), "suffix");
  } else {
    out_.chat.add("messages", JsonValue::array());
    if (const std::string system = body_.at("system").string_or(""); !system.empty())
      out_.add_message(text_message("system", system), "system");
    out_.add_message(text_message("user", body_.at("prompt").string()), "prompt");
    read_think();
  }
  read_shared();
  return std::move(out_);
}

void OllamaTranslator::read_message(const Field& item, bool last) {
  refuse_images(item);
  const std::string& role = item.at("role").string();
  if (role == "tool") return read_result(item);
  JsonValue message = text_message(role, item.at("content").string_or(""));
  if (role == "assistant") {
    JsonValue calls = read_calls(item.at("tool_calls"));
    if (const Field thinking = item.at("thinking"); thinking.present())
      message.add("reasoning_content", JsonValue::of_string(thinking.string()));
    if (last && calls.items.empty()) message.add("prefix", JsonValue::of_bool(true));
    if (!calls.items.empty()) message.add("tool_calls", std::move(calls));
  }
  out_.add_message(std::move(message), item.path());
}

// Ollama's calls have no ids that must be there: each gets one of this request.
JsonValue OllamaTranslator::read_calls(const Field& calls) {
  JsonValue list = JsonValue::array();
  unanswered_.clear();
  for (size_t i = 0; calls.present() && i < calls.list(); ++i) {
    const Field function = calls.at(i).at("function");
    const Call call{function.at("name").string(), fmt::format("call_{}", num_calls_++)};
    JsonValue named = JsonValue::object();
    named.add("name", JsonValue::of_string(call.name));
    named.add("arguments", function.at("arguments").object());
    JsonValue one = JsonValue::object();
    one.add("id", JsonValue::of_string(call.id));
    one.add("function", std::move(named));
    list.items.push_back(std::move(one));
    unanswered_.push_back(call);
  }
  return list;
}

void OllamaTranslator::read_result(const Field& item) {
  const std::string name = item.at("tool_name").string_or(item.at("name").string_or(""));
  auto call = std::ranges::find(unanswered_, name, &Call::name);
  if (call == unanswered_.end()) call = unanswered_.begin();
  if (call == unanswered_.end())
    refuse(item.path(), "a message with role tool must follow a message with tool_calls");
  JsonValue result = text_message("tool", item.at("content").string());
  result.add("tool_call_id", JsonValue::of_string(call->id));
  unanswered_.erase(call);
  out_.add_message(std::move(result), item.path());
}

void OllamaTranslator::read_shared() {
  read_options();
  read_format();
  out_.chat.add("stream", JsonValue::of_bool(body_.at("stream").boolean(true)));
  if (out_.completion) return;
  out_.copy(body_.at("logprobs"), "logprobs");
  out_.copy(body_.at("top_logprobs"), "top_logprobs");
}

void OllamaTranslator::read_options() {
  const Field options = body_.at("options");
  if (!options.present()) return;
  options.object();
  for (const Option& option : kOptions) out_.copy(options.at(option.ollama), option.own);
  // -1 and -2: as many as there is room for.
  const Field count = options.at("num_predict");
  if (!count.present()) return;
  const bool any = count.json().is(JsonValue::Kind::kInteger) &&
                   (count.json().text == "-1" || count.json().text == "-2");
  if (!any) out_.copy(count, "max_tokens");
}

void OllamaTranslator::read_format() {
  const Field format = body_.at("format");
  if (!format.present() || format.json() == JsonValue::of_string("")) return;
  JsonValue schema = JsonValue::object();
  if (format.json().is_string()) {
    if (format.string() != "json") refuse("format", "want \"json\" or a JSON schema");
    schema.add("type", JsonValue::of_string("object"));
  } else {
    schema = format.object();
  }
  JsonValue named = JsonValue::object();
  named.add("schema", std::move(schema));
  JsonValue wanted = JsonValue::object();
  wanted.add("type", JsonValue::of_string("json_schema"));
  wanted.add("json_schema", std::move(named));
  out_.chat.add("response_format", std::move(wanted));
  out_.field_paths["response_format"] = "format";
}

void OllamaTranslator::read_think() {
  const Field think = body_.at("think");
  if (!think.present()) return;
  bool on = true;
  if (think.json().is_string()) {
    out_.copy(think, "reasoning_effort");
  } else {
    on = think.boolean(true);
  }
  JsonValue thinking = JsonValue::object();
  thinking.add("type", JsonValue::of_string(on ? "enabled" : "disabled"));
  out_.chat.add("thinking", std::move(thinking));
  out_.field_paths["thinking"] = "think";
}

bool is_zero(const JsonValue& value) {
  return value.text == "0" || value.text == "0s" || value.text == "0m" ||
         (value.is(JsonValue::Kind::kDouble) && value.number == 0);
}

}  // namespace

Translated chat_of_ollama_chat(const JsonValue& body) {
  return OllamaTranslator(body).chat();
}

Translated chat_of_ollama_generate(const JsonValue& body) {
  return OllamaTranslator(body).generate();
}

std::string ollama_load_reason(const JsonValue& body) {
  const Field fields(&body, "");
  const Field messages = fields.at("messages"), prompt = fields.at("prompt");
  if (messages.present() && messages.list() > 0) return "";
  if (prompt.present() && !prompt.string().empty()) return "";
  const JsonValue* keep = body.find("keep_alive");
  return keep != nullptr && is_zero(*keep) ? "unload" : "load";
}

}  // namespace dsv4
