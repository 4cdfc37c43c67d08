// /api/chat and /api/generate: JSON objects, a line each where they are a stream, the last of which
// has `done`, why, and how long everything took.

#include <fmt/chrono.h>

#include <chrono>
#include <utility>

#include "dsv4/chat/chat_message.h"
#include "dsv4/server/answer.h"
#include "dsv4/server/json_text.h"
#include "dsv4/server/logprobs.h"

namespace dsv4 {
namespace {

std::string time_now() {
  const auto now = std::chrono::system_clock::now();
  const auto seconds = std::chrono::system_clock::to_time_t(now);
  const auto micros =
      std::chrono::duration_cast<std::chrono::microseconds>(now.time_since_epoch()).count() %
      1'000'000;
  return fmt::format("{:%Y-%m-%dT%H:%M:%S}.{:06}Z", fmt::gmtime(seconds), micros);
}

int64_t nanoseconds(double seconds) {
  return static_cast<int64_t>(std::max(seconds, 0.0) * 1e9);
}

class OllamaAnswer : public AnswerWriter, public OutputSink {
 public:
  OllamaAnswer(AnswerContext context, bool is_chat)
      : context_(std::move(context)), is_chat_(is_chat) {}

  OutputSink& sink(size_t) override { return *this; }
  const char* stream_type() const override { return "application/x-ndjson"; }
  std::string keep_alive() const override { return ""; }  // a line that is no object breaks clients

  void on_reasoning(std::string_view text) override {
    whole_.on_reasoning(text);
    send("", text, nullptr);
  }
  void on_content(std::string_view text) override {
    whole_.on_content(text);
    send(text, "", nullptr);
  }
  void on_call(const std::string& name) override { whole_.on_call(name); }
  void on_arguments(std::string_view json) override { whole_.on_arguments(json); }
  void on_call_end() override {
    whole_.on_call_end();
    send("", "", call_json(whole_.calls.back(), whole_.calls.size() - 1));
  }
  void logprobs(size_t, std::vector<TokenLogprob> tokens, bool) override {
    for (const TokenLogprob& token : tokens) logprobs_.push_back(logprob_json(token));
  }

  void finish(size_t, const ChoiceEnd& end) override { end_ = end; }

  void end() override {
    Json last = head();
    if (context_.settings.stream) {
      add_text(last, "", "", nullptr);
    } else {
      Json calls = Json::array();
      for (const ChatMessage::Call& call : whole_.calls)
        if (call.complete) calls.push_back(call_json(call, calls.size())[0]);
      add_text(last, whole_.content, whole_.reasoning, calls.empty() ? Json() : calls);
    }
    const Usage& usage = *context_.usage;
    const Times& times = *context_.times;
    const double first = times.first_token < 0 ? times.total : times.first_token;  // none came
    last["done"] = true;
    last["done_reason"] = end_.reason == FinishReason::kLength ? "length" : "stop";
    last["total_duration"] = nanoseconds(times.total);
    last["load_duration"] = 0;
    last["prompt_eval_count"] = usage.prompt;
    last["prompt_eval_duration"] = nanoseconds(first - times.queue);
    last["eval_count"] = usage.completion;
    last["eval_duration"] = nanoseconds(times.total - first);
    emit(last);
  }
  void fail(const ApiError& error) override {
    out_ += error_body(Api::kOllamaChat, error, context_.request_id) + "\n";
  }
  std::string take() override { return std::exchange(out_, {}); }

 private:
  // Ollama's arguments are an object, not the text of one.
  static Json call_json(const ChatMessage::Call& call, size_t index) {
    Json arguments = Json::parse(call.arguments, nullptr, /*allow_exceptions=*/false);
    if (!arguments.is_object()) arguments = Json::object();
    return Json::array(
        {{{"id", random_call_id()},
          {"function",
           {{"index", index}, {"name", call.name}, {"arguments", std::move(arguments)}}}}});
  }

  Json head() const { return {{"model", context_.model}, {"created_at", time_now()}}; }

  void add_text(Json& line, std::string_view content, std::string_view thinking, Json calls) const {
    if (!is_chat_) {
      line["response"] = content;
      if (!thinking.empty()) line["thinking"] = thinking;
      return;
    }
    Json message = {{"role", "assistant"}, {"content", content}};
    if (!thinking.empty()) message["thinking"] = thinking;
    if (!calls.is_null()) message["tool_calls"] = std::move(calls);
    line["message"] = std::move(message);
  }

  void send(std::string_view content, std::string_view thinking, Json calls) {
    if (!context_.settings.stream) return;
    Json line = head();
    add_text(line, content, thinking, std::move(calls));
    line["done"] = false;
    emit(line);
  }

  void emit(Json& line) {
    if (!logprobs_.empty()) line["logprobs"] = std::exchange(logprobs_, Json::array());
    out_ += text_of(line);
    if (context_.settings.stream) out_ += "\n";
  }

  const AnswerContext context_;
  const bool is_chat_;
  ChatMessage whole_;
  Json logprobs_ = Json::array();
  ChoiceEnd end_;
  std::string out_;
};

}  // namespace

std::unique_ptr<AnswerWriter> ollama_writer(AnswerContext context, bool is_chat) {
  return std::make_unique<OllamaAnswer>(std::move(context), is_chat);
}

}  // namespace dsv4
