// /v1/responses: items reasoning, message, function_call and custom_tool_call, with numbered
// events.

#include <ctime>
#include <utility>

#include "dsv4/chat/chat_message.h"
#include "dsv4/server/answer.h"
#include "dsv4/server/logprobs.h"
#include "dsv4/server/seal.h"

namespace dsv4 {
namespace {

// Keys are unique already: appending a member without a search for an equal key keeps an object of
// many keys linear.
Json json_of(const JsonValue& value) {
  if (value.is_array()) {
    Json array = Json::array();
    for (const JsonValue& item : value.items) array.push_back(json_of(item));
    return array;
  }
  if (!value.is_object()) return Json::parse(to_json(value), nullptr, false);
  Json object = Json::object();
  Json::object_t::Container& members = object.get_ref<Json::object_t&>();
  for (const auto& [key, member] : value.members) members.emplace_back(key, json_of(member));
  return object;
}

// A copy of a JSON object of the request with the fields that the published schema requires.
Json with_fields(Json object, std::initializer_list<const char*> fields) {
  for (const char* field : fields) {
    if (object.is_object() && !object.contains(field)) object[field] = nullptr;
  }
  return object;
}

// One of the codes that the published schema lists.
const char* code_of(const ApiError& error) {
  if (error.status == 429) return "rate_limit_exceeded";
  return error.status < 500 ? "invalid_prompt" : "server_error";
}

class Responses : public AnswerWriter, public OutputSink {
 public:
  explicit Responses(AnswerContext context)
      : context_(std::move(context)), id_(random_id("resp_")) {
    if (const JsonValue* include = context_.body.find("include")) {
      for (const JsonValue& item : include->items)
        seals_ = seals_ || item == JsonValue::of_string("reasoning.encrypted_content");
    }
  }

  OutputSink& sink(size_t) override { return *this; }

  void logprobs(size_t, std::vector<TokenLogprob> tokens, bool reasoning) override {
    if (reasoning) return;  // the API has them of the text only
    for (const TokenLogprob& token : tokens) new_logprobs_.push_back(logprob_json(token));
  }

  void begin() override {
    const Json response = snapshot("in_progress");
    emit("response.created", {{"response", response}});
    emit("response.in_progress", {{"response", response}});
  }

  void on_reasoning(std::string_view text) override {
    if (kind_ != Kind::kReasoning) {
      open(Kind::kReasoning, {{"id", random_id("rs_")},
                              {"type", "reasoning"},
                              {"summary", Json::array()},
                              {"content", Json::array()},
                              {"status", "in_progress"}});
      emit_part("response.content_part.added", {{"part", reasoning_part("")}});
    }
    text_ += text;
    emit_part("response.reasoning_text.delta", {{"delta", text}});
  }

  void on_content(std::string_view text) override {
    if (kind_ != Kind::kMessage) {
      open(Kind::kMessage, {{"id", random_id("msg_")},
                            {"type", "message"},
                            {"status", "in_progress"},
                            {"role", "assistant"},
                            {"phase", "final_answer"},
                            {"content", Json::array()}});
      emit_part("response.content_part.added", {{"part", text_part("", Json::array())}});
    }
    text_ += text;
    Json logprobs = std::exchange(new_logprobs_, Json::array());
    logprobs_.insert(logprobs_.end(), logprobs.begin(), logprobs.end());
    emit_part("response.output_text.delta", {{"delta", text}, {"logprobs", std::move(logprobs)}});
  }

  void on_call(const std::string& name) override {
    const bool custom = context_.request.custom_tools.contains(name);
    close("completed", "commentary");
    open(custom ? Kind::kCustom : Kind::kCall,
         {{"id", random_id(custom ? "ctc_" : "fc_")},
          {"type", custom ? "custom_tool_call" : "function_call"},
          {"status", "in_progress"},
          {"call_id", random_call_id()},
          {"name", name},
          {custom ? "input" : "arguments", ""}});
  }
  void on_arguments(std::string_view json) override {
    text_ += json;
    if (kind_ == Kind::kCall)
      emit_item("response.function_call_arguments.delta", {{"delta", json}});
  }
  void on_call_end() override { close("completed", ""); }

  void finish(size_t, const ChoiceEnd& end) override {
    end_ = end;
    close(end.reason == FinishReason::kLength ? "incomplete" : "completed", "final_answer");
  }

  void end() override {
    const bool cut = end_.reason == FinishReason::kLength;
    const Json response = snapshot(cut ? "incomplete" : "completed");
    if (context_.settings.stream) {
      emit(cut ? "response.incomplete" : "response.completed", {{"response", response}});
    } else {
      out_ = text_of(response);
    }
  }

  void fail(const ApiError& error) override {
    Json response = snapshot("failed");
    response["error"] = {{"code", code_of(error)},
                         {"message", error.message},
                         {"type", error.code.empty() ? error_type(error.status) : error.code}};
    emit("response.failed", {{"response", std::move(response)}});
  }
  std::string take() override { return std::exchange(out_, {}); }

 private:
  enum class Kind { kNone, kReasoning, kMessage, kCall, kCustom };

  static Json reasoning_part(const std::string& text) {
    return {{"type", "reasoning_text"}, {"text", text}};
  }
  static Json text_part(const std::string& text, const Json& logprobs) {
    return {{"type", "output_text"},
            {"text", text},
            {"annotations", Json::array()},
            {"logprobs", logprobs}};
  }

  void emit(const std::string& type, Json fields) {
    if (!context_.settings.stream) return;
    Json event = {{"type", type}, {"sequence_number", sequence_++}};
    event.update(fields);
    out_ += "event: " + type + "\ndata: " + text_of(event) + "\n\n";
  }
  void emit_item(const std::string& type, const Json& fields) {
    Json all = {{"item_id", item_["id"]}, {"output_index", output_.size()}};
    all.update(fields);
    emit(type, std::move(all));
  }
  void emit_part(const std::string& type, const Json& fields) {
    Json all = {{"content_index", 0}};
    all.update(fields);
    emit_item(type, all);
  }

  void open(Kind kind, Json item) {
    close("completed", "commentary");
    kind_ = kind;
    item_ = std::move(item);
    emit("response.output_item.added", {{"output_index", output_.size()}, {"item", item_}});
  }

  void close(const char* status, const char* phase) {
    switch (kind_) {
      case Kind::kNone:
        return;
      case Kind::kReasoning:
        emit_part("response.reasoning_text.done", {{"text", text_}});
        emit_part("response.content_part.done", {{"part", reasoning_part(text_)}});
        item_["content"].push_back(reasoning_part(text_));
        if (seals_) item_["encrypted_content"] = sealed(context_.seal_key, text_);
        break;
      case Kind::kMessage:
        emit_part("response.output_text.done", {{"text", text_}, {"logprobs", logprobs_}});
        emit_part("response.content_part.done", {{"part", text_part(text_, logprobs_)}});
        item_["content"].push_back(text_part(text_, logprobs_));
        logprobs_ = Json::array();
        item_["phase"] = phase;
        break;
      case Kind::kCall:
        emit_item("response.function_call_arguments.done",
                  {{"name", item_["name"]}, {"arguments", text_}});
        item_["arguments"] = text_;
        break;
      case Kind::kCustom:
        close_custom();
        break;
    }
    item_["status"] = status;
    emit("response.output_item.done", {{"output_index", output_.size()}, {"item", item_}});
    output_.push_back(std::move(item_));
    kind_ = Kind::kNone;
    text_.clear();
  }

  // Its one parameter is the text that the tool takes.
  void close_custom() {
    const auto arguments = try_parse_json(text_);
    const JsonValue* input = arguments ? arguments->find("input") : nullptr;
    const std::string text = input != nullptr && input->is_string() ? input->text : text_;
    emit_item("response.custom_tool_call_input.delta", {{"delta", text}});
    emit_item("response.custom_tool_call_input.done", {{"input", text}});
    item_["input"] = text;
  }

  Json usage() const {
    const Usage& usage = *context_.usage;
    return {{"input_tokens", usage.prompt},
            {"input_tokens_details", {{"cached_tokens", usage.cached}, {"cache_write_tokens", 0}}},
            {"output_tokens", usage.completion},
            {"output_tokens_details", {{"reasoning_tokens", usage.reasoning}}},
            {"total_tokens", usage.prompt + usage.completion}};
  }

  // A field of the request, or what applies without it or where it is null.
  Json asked(const char* key, Json otherwise) const {
    const JsonValue* value = context_.body.find(key);
    return value == nullptr || value->is_null() ? std::move(otherwise) : json_of(*value);
  }

  Json asked_tools() const {
    Json tools = asked("tools", Json::array());
    for (Json& tool : tools) {
      if (tool.value("type", "") == "function")
        tool = with_fields(std::move(tool), {"description", "parameters", "strict"});
    }
    return tools;
  }

  Json asked_text() const {
    Json text = asked("text", Json::object());
    if (!text.contains("format") || text["format"].is_null()) text["format"] = {{"type", "text"}};
    Json& format = text["format"];
    if (format.value("type", "") == "json_schema") {
      format = with_fields(std::move(format), {"name", "description"});
      if (format["name"].is_null()) format["name"] = "answer";
      if (!format.contains("strict") || format["strict"].is_null()) format["strict"] = false;
    }
    return text;
  }

  Json incomplete_details(const std::string& status) const {
    if (status != "incomplete") return nullptr;
    return {{"reason", "max_output_tokens"}};
  }

  // The response as it stands. Fields that the published schema requires are null where there is
  // nothing, also those that have no effect here.
  Json snapshot(const std::string& status) const {
    const SamplingParams& sampling = context_.settings.sampling;
    return {{"id", id_},
            {"object", "response"},
            {"created_at", context_.created},
            {"completed_at", status == "completed" ? Json(std::time(nullptr)) : Json()},
            {"status", status},
            {"background", false},
            {"error", nullptr},
            {"incomplete_details", incomplete_details(status)},
            {"instructions", asked("instructions", nullptr)},
            {"max_output_tokens", asked("max_output_tokens", nullptr)},
            {"max_tool_calls", asked("max_tool_calls", nullptr)},
            {"model", context_.model},
            {"output", output_},
            {"parallel_tool_calls", asked("parallel_tool_calls", true)},
            {"previous_response_id", nullptr},
            {"prompt_cache_key", asked("prompt_cache_key", nullptr)},
            {"reasoning", with_fields(asked("reasoning", Json::object()), {"effort", "summary"})},
            {"safety_identifier", asked("safety_identifier", nullptr)},
            {"service_tier", "default"},
            {"store", false},
            {"temperature", sampling.temperature},
            {"text", asked_text()},
            {"tool_choice", asked("tool_choice", "auto")},
            {"tools", asked_tools()},
            {"top_logprobs", sampling.top_logprobs},
            {"top_p", sampling.top_p},
            {"presence_penalty", sampling.presence_penalty},
            {"frequency_penalty", sampling.frequency_penalty},
            {"truncation", "disabled"},
            {"usage", status == "in_progress" ? Json() : usage()},
            {"user", nullptr},
            {"metadata", asked("metadata", Json::object())}};
  }

  const AnswerContext context_;
  const std::string id_;
  bool seals_ = false;
  Kind kind_ = Kind::kNone;
  Json item_;                                                     // that is open
  std::string text_;                                              // of it
  Json logprobs_ = Json::array(), new_logprobs_ = Json::array();  // of it; of the next delta
  Json output_ = Json::array();
  int64_t sequence_ = 0;
  ChoiceEnd end_;
  std::string out_;
};

}  // namespace

std::unique_ptr<AnswerWriter> responses_writer(AnswerContext context) {
  return std::make_unique<Responses>(std::move(context));
}

}  // namespace dsv4
