// /v1/messages: content blocks in the order thinking, text, tool_use.

#include <openssl/evp.h>
#include <openssl/hmac.h>

#include <utility>

#include "dsv4/base/ascii.h"
#include "dsv4/chat/chat_message.h"
#include "dsv4/server/answer.h"
#include "dsv4/server/json_text.h"

namespace dsv4 {
namespace {

// "dsv4." and 16 bytes of a MAC in hexadecimal. Opaque to clients, and any is accepted back.
std::string signature(const std::string& key, const std::string& thinking) {
  unsigned char mac[EVP_MAX_MD_SIZE];
  unsigned size = 0;
  HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()),
       reinterpret_cast<const unsigned char*>(thinking.data()), thinking.size(), mac, &size);
  return "dsv4." + hex_digits({mac, std::min(size, 16u)});
}

class Messages : public AnswerWriter, public OutputSink {
 public:
  explicit Messages(AnswerContext context) : context_(std::move(context)), id_(random_id("msg_")) {}

  OutputSink& sink(size_t) override { return *this; }

  void begin() override {
    Json message = head();
    message["content"] = Json::array();
    message.update(stop(/*reason=*/nullptr));
    message["usage"] = usage_of_message();
    emit({{"type", "message_start"}, {"message", std::move(message)}});
    emit({{"type", "ping"}});
  }

  void on_reasoning(std::string_view text) override {
    if (block_ != Block::kThinking) {
      open(Block::kThinking, {{"type", "thinking"}, {"thinking", ""}, {"signature", ""}});
    }
    text_ += text;
    delta({{"type", "thinking_delta"}, {"thinking", text}});
  }
  void on_content(std::string_view text) override {
    if (block_ != Block::kText)
      open(Block::kText, {{"type", "text"}, {"text", ""}, {"citations", nullptr}});
    text_ += text;
    delta({{"type", "text_delta"}, {"text", text}});
  }
  void on_call(const std::string& name) override {
    open(Block::kTool, {{"type", "tool_use"},
                        {"id", random_id("toolu_")},
                        {"name", name},
                        {"input", Json::object()},
                        {"caller", {{"type", "direct"}}}});
  }
  void on_arguments(std::string_view json) override {
    text_ += json;
    delta({{"type", "input_json_delta"}, {"partial_json", json}});
  }
  void on_call_end() override { close(); }

  void finish(size_t, const ChoiceEnd& end) override {
    close();
    end_ = end;
  }

  void end() override {
    if (context_.settings.stream) {
      emit({{"type", "message_delta"}, {"delta", stop(stop_reason())}, {"usage", usage()}});
      emit({{"type", "message_stop"}});
      return;
    }
    Json message = head();
    message["content"] = std::move(content_);
    message.update(stop(stop_reason()));
    message["usage"] = usage_of_message();
    out_ = text_of(message);
  }

  void fail(const ApiError& error) override {
    out_ +=
        "event: error\ndata: " + error_body(Api::kMessages, error, context_.request_id) + "\n\n";
  }
  std::string take() override { return std::exchange(out_, {}); }

 private:
  enum class Block { kNone, kThinking, kText, kTool };

  Json head() const {
    return {{"id", id_}, {"type", "message"}, {"role", "assistant"}, {"model", context_.model}};
  }
  Json usage() const {
    const Usage& usage = *context_.usage;
    return {{"input_tokens", usage.prompt - usage.cached},
            {"cache_creation_input_tokens", 0},
            {"cache_read_input_tokens", usage.cached},
            {"output_tokens", usage.completion},
            {"output_tokens_details", {{"thinking_tokens", usage.reasoning}}},
            {"server_tool_use", nullptr}};
  }
  // A message's usage has more than that of a delta.
  Json usage_of_message() const {
    Json json = usage();
    json["cache_creation"] = {{"ephemeral_5m_input_tokens", 0}, {"ephemeral_1h_input_tokens", 0}};
    json["service_tier"] = "standard";
    json["inference_geo"] = nullptr;
    return json;
  }
  // How a message ended. Fields that the published schema requires are null where there is nothing.
  Json stop(const Json& reason) const {
    return {{"stop_reason", reason},
            {"stop_sequence", end_.stop_string ? Json(*end_.stop_string) : Json()},
            {"stop_details", nullptr},
            {"container", nullptr}};
  }
  const char* stop_reason() const {
    if (end_.stop_string) return "stop_sequence";
    if (end_.reason == FinishReason::kToolCalls) return "tool_use";
    if (end_.reason != FinishReason::kLength) return "end_turn";
    return end_.context_end ? "model_context_window_exceeded" : "max_tokens";
  }

  void emit(const Json& event) {
    if (!context_.settings.stream) return;
    out_ += "event: " + event["type"].get<std::string>() + "\ndata: " + text_of(event) + "\n\n";
  }
  void open(Block block, Json start) {
    close();
    block_ = block;
    emit({{"type", "content_block_start"}, {"index", index_}, {"content_block", start}});
    start_ = std::move(start);
  }
  void delta(Json delta) {
    emit({{"type", "content_block_delta"}, {"index", index_}, {"delta", std::move(delta)}});
  }
  void close() {
    if (block_ == Block::kNone) return;
    if (block_ == Block::kThinking) {
      start_["thinking"] = text_;
      start_["signature"] = signature(context_.seal_key, text_);
      delta({{"type", "signature_delta"}, {"signature", start_["signature"]}});
    } else if (block_ == Block::kText) {
      start_["text"] = text_;
    } else {
      start_["input"] = Json::parse(text_, nullptr, /*allow_exceptions=*/false);
    }
    emit({{"type", "content_block_stop"}, {"index", index_}});
    // A call whose arguments were cut must not look whole: stop_reason has the cause.
    const bool cut = block_ == Block::kTool && !start_["input"].is_object();
    if (!cut) content_.push_back(std::move(start_));
    ++index_;
    block_ = Block::kNone;
    text_.clear();
  }

  const AnswerContext context_;
  const std::string id_;
  Block block_ = Block::kNone;
  Json start_;        // the block that is open
  std::string text_;  // of it
  int64_t index_ = 0;
  Json content_ = Json::array();
  ChoiceEnd end_;
  std::string out_;
};

}  // namespace

std::unique_ptr<AnswerWriter> messages_writer(AnswerContext context) {
  return std::make_unique<Messages>(std::move(context));
}

}  // namespace dsv4
