// Chat with a server over OpenAI's chat API: dsv4 serve, vLLM, SGLang, llama.cpp, or a service.
// Only fields that all of them know are sent, and those that the user set.

#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>

#include "apps/chat_backend.h"
#include "apps/http_client.h"
#include "dsv4/base/error.h"
#include "dsv4/base/quote.h"
#include "dsv4/text/utf8.h"

namespace dsv4::apps {
namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kMaxReason = 300;             // bytes of an error that is shown
constexpr size_t kMaxLine = size_t{64} << 20;  // of a stream

double seconds(Clock::duration time) {
  return std::chrono::duration<double>(time).count();
}

// Joins the lines of a stream of events, and reports the data of each.
class EventLines {
 public:
  // `piece`: any cut of the stream.
  template <class OnData>
  void add(std::string_view piece, const OnData& on_data) {
    size_t begin = 0, from = line_.size();  // what came before has no end of a line
    line_ += piece;
    for (size_t end; (end = line_.find('\n', from)) != line_.npos; begin = from = end + 1) {
      std::string_view line = std::string_view(line_).substr(begin, end - begin);
      if (line.ends_with('\r')) line.remove_suffix(1);
      constexpr std::string_view kData = "data:";
      if (!line.starts_with(kData)) continue;  // a comment, an id, the end of an event
      line.remove_prefix(kData.size());
      if (line.starts_with(' ')) line.remove_prefix(1);
      on_data(line);
    }
    line_.erase(0, begin);
    if (line_.size() > kMaxLine) fail(ErrorCode::kIo, "the server sends an event without an end");
  }

 private:
  std::string line_;  // that has not ended
};

// The text of a member, or nothing.
std::string text_in(const nlohmann::json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_string() ? found->get<std::string>() : "";
}

int64_t number_in(const nlohmann::json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_number_integer() ? found->get<int64_t>() : 0;
}

// What an error body says, in the forms of the servers that there are.
std::string reason_of(const std::string& body) {
  const nlohmann::json json = nlohmann::json::parse(body, nullptr, false);
  if (!json.is_object()) return printable(body, kMaxReason);
  for (const char* key : {"error", "detail", "message"}) {
    const auto found = json.find(key);
    if (found == json.end()) continue;
    if (found->is_string()) return printable(found->get<std::string>(), kMaxReason);
    if (found->is_object()) return printable(text_in(*found, "message"), kMaxReason);
  }
  return printable(body, kMaxReason);
}

// The deltas of one answer.
class DeltaReader {
 public:
  DeltaReader(OutputSink& sink, Clock::time_point begin) : sink_(sink), begin_(begin) {}

  void on_data(std::string_view data) {
    if (data == "[DONE]") return;
    const nlohmann::json event = nlohmann::json::parse(data, nullptr, false);
    if (!event.is_object())
      fail(ErrorCode::kIo, "the server sends events that are no JSON objects");
    if (event.contains("error"))
      fail(ErrorCode::kIo, "the server: {}", reason_of(std::string(data)));
    if (const auto usage = event.find("usage"); usage != event.end() && usage->is_object()) {
      prompt_tokens_ = number_in(*usage, "prompt_tokens");
      tokens_ = number_in(*usage, "completion_tokens");
    }
    const auto choices = event.find("choices");
    if (choices == event.end() || !choices->is_array() || choices->empty()) return;
    const nlohmann::json& choice = choices->front();
    if (!choice.is_object()) return;
    any_ = true;
    const auto delta = choice.find("delta");
    if (delta == choice.end() || !delta->is_object()) return;
    std::string reasoning = text_in(*delta, "reasoning_content");
    if (reasoning.empty()) reasoning = text_in(*delta, "reasoning");  // vLLM, OpenRouter
    const std::string content = text_in(*delta, "content");
    if (reasoning.empty() && content.empty()) return;
    if (deltas_++ == 0) first_ = Clock::now();
    if (!reasoning.empty()) sink_.on_reasoning(reasoning);
    if (!content.empty()) sink_.on_content(content);
  }

  bool any() const { return any_; }
  ChatAnswer answer() const {
    const auto now = Clock::now(), first = deltas_ > 0 ? first_ : now;
    return {.prompt_tokens = prompt_tokens_,
            .tokens = tokens_ > 0 ? tokens_ : deltas_,
            .first_seconds = seconds(first - begin_),
            .rest_seconds = seconds(now - first)};
  }

 private:
  OutputSink& sink_;
  const Clock::time_point begin_;
  Clock::time_point first_;
  int64_t deltas_ = 0, prompt_tokens_ = 0, tokens_ = 0;
  bool any_ = false;
};

class RemoteChat : public ChatBackend {
 public:
  RemoteChat(const std::string& url, const std::string& model, const std::string& key)
      : url_(parse_http_url(url)), model_(model) {
    if (url_.path.ends_with(kVersion)) url_.path.erase(url_.path.size() - kVersion.size());
    const bool plain =
        std::all_of(key.begin(), key.end(), [](char c) { return c > ' ' && c < 0x7f; });
    if (!plain) fail(ErrorCode::kBadInput, "a key has no spaces and no control characters");
    if (valid_utf8_prefix(model) != model.size())
      fail(ErrorCode::kBadInput, "MODEL '{}' is not valid UTF-8", quotable(model));
    if (!key.empty()) headers_.emplace_back("Authorization", "Bearer " + key);
    if (model_.empty()) model_ = first_model();
  }

  ChatAnswer answer(const JsonValue& body, const SamplingOptions& sampling, OutputSink& sink,
                    const std::function<bool()>& stopped) override;
  void check(const JsonValue& body) const override {
    const JsonValue* messages = body.find("messages");
    if (messages == nullptr || !messages->is_array() || messages->items.empty())
      fail(ErrorCode::kBadInput, "want an object with messages");
    for (const JsonValue& message : messages->items) {
      const JsonValue* role = message.find("role");
      if (role == nullptr || !role->is_string())
        fail(ErrorCode::kBadInput, "want messages that are objects with a role");
    }
  }
  std::string count_tokens(const JsonValue& body) override;

 private:
  static constexpr std::string_view kVersion = "/v1";

  std::string first_model() const;
  nlohmann::json json_of(const JsonValue& body) const;
  [[noreturn]] void refuse(const HttpReply& reply) const {
    fail(ErrorCode::kIo, "{}: status {}: {}", url_.text(), reply.status, reason_of(reply.body));
  }

  HttpUrl url_;
  std::string model_;
  std::vector<std::pair<std::string, std::string>> headers_;
};

std::string RemoteChat::first_model() const {
  const HttpReply reply = call(url_, {.path = "/v1/models", .headers = headers_});
  if (reply.status != 200) refuse(reply);
  const nlohmann::json models = nlohmann::json::parse(reply.body, nullptr, false);
  const auto list = models.is_object() ? models.find("data") : models.end();
  if (!models.is_object() || list == models.end() || !list->is_array() || list->empty() ||
      !list->front().is_object() || text_in(list->front(), "id").empty())
    fail(ErrorCode::kIo, "{}/v1/models names no model: give MODEL", url_.text());
  return text_in(list->front(), "id");
}

// Past reasoning is not sent: a chat without tools does not render it, and some servers refuse it.
nlohmann::json RemoteChat::json_of(const JsonValue& body) const {
  nlohmann::json json = nlohmann::json::parse(to_json(body));
  for (nlohmann::json& message : json["messages"]) {
    if (message.is_object()) message.erase("reasoning_content");
  }
  json["model"] = model_;
  return json;
}

ChatAnswer RemoteChat::answer(const JsonValue& body, const SamplingOptions& sampling,
                              OutputSink& sink, const std::function<bool()>& stopped) {
  nlohmann::json json = json_of(body);
  json["stream"] = true;
  json["stream_options"] = {{"include_usage", true}};
  const auto set = [&](const char* key, const auto& value) {
    if (value) json[key] = *value;
  };
  set("temperature", sampling.temperature);
  set("top_p", sampling.top_p);
  set("top_k", sampling.top_k);
  set("min_p", sampling.min_p);
  set("repetition_penalty", sampling.repetition_penalty);
  set("presence_penalty", sampling.presence_penalty);
  set("frequency_penalty", sampling.frequency_penalty);
  set("seed", sampling.seed);
  for (const LogitBias& one : sampling.logit_bias)
    json["logit_bias"][std::to_string(one.id)] = one.bias;
  DeltaReader reader(sink, Clock::now());
  EventLines lines;
  const HttpReply reply =
      call(url_, {.path = "/v1/chat/completions",
                  .body = json.dump(),
                  .headers = headers_,
                  .on_piece =
                      [&](std::string_view piece) {
                        lines.add(piece, [&](std::string_view data) { reader.on_data(data); });
                      },
                  .stopped = stopped});
  if (!reply.stopped && reply.status != 200) refuse(reply);
  if (!reply.stopped && !reader.any())
    fail(ErrorCode::kIo, "{} answers without a stream of events", url_.text());
  return reader.answer();
}

std::string RemoteChat::count_tokens(const JsonValue& body) {
  // A route of dsv4 and vLLM.
  const HttpReply reply =
      call(url_, {.path = "/tokenize", .body = json_of(body).dump(), .headers = headers_});
  const nlohmann::json counted = nlohmann::json::parse(reply.body, nullptr, false);
  if (reply.status != 200 || !counted.is_object() || number_in(counted, "count") == 0)
    fail(ErrorCode::kUnsupported, "this server does not count tokens");
  return fmt::format("{} of {} tokens", number_in(counted, "count"),
                     number_in(counted, "max_model_len"));
}

}  // namespace

std::unique_ptr<ChatBackend> remote_chat(const std::string& url, const std::string& model,
                                         const std::string& key) {
  return std::make_unique<RemoteChat>(url, model, key);
}

}  // namespace dsv4::apps
