// /v1/chat/completions and /v1/completions.

#include <cmath>
#include <utility>

#include "dsv4/chat/chat_message.h"
#include "dsv4/server/answer.h"
#include "dsv4/server/logprobs.h"

namespace dsv4 {
namespace {

Json usage_json(const Usage& usage) {
  return {{"prompt_tokens", usage.prompt},
          {"completion_tokens", usage.completion},
          {"total_tokens", usage.prompt + usage.completion},
          {"prompt_tokens_details", {{"cached_tokens", usage.cached}}},
          {"completion_tokens_details",
           {{"reasoning_tokens", usage.reasoning},
            {"accepted_prediction_tokens", usage.accepted_prediction},
            {"rejected_prediction_tokens", usage.rejected_prediction}}},
          {"prompt_cache_hit_tokens", usage.cached},
          {"prompt_cache_miss_tokens", usage.prompt - usage.cached}};
}

// top_logprobs of /v1/completions: the likeliest tokens by their text, and the chosen one. Where
// several tokens have the same text, the first counts.
Json top_json(const TokenLogprob& token) {
  Json top = Json::object();
  for (const TokenLogprob& one : token.top) top.emplace(token_text(one.bytes), one.logprob);
  top.emplace(token_text(token.bytes), token.logprob);
  return top;
}

// Logprobs of a choice of a chat: those of the reasoning, where there is one, stand beside those of
// the content. The published schema wants both of its lists, null where there is nothing.
void append_logprobs(Json& logprobs, const std::vector<TokenLogprob>& tokens, bool reasoning) {
  if (logprobs.empty()) logprobs = {{"content", nullptr}, {"refusal", nullptr}};
  Json& list = logprobs[reasoning ? "reasoning_content" : "content"];
  for (const TokenLogprob& token : tokens) list.push_back(logprob_json(token));
}

std::string finish_word(const ChoiceEnd& end) {
  return end.reason == FinishReason::kError ? "stop" : name(end.reason);
}

void add_stop_reason(Json& choice, const ChoiceEnd& end) {
  if (end.stop_string) choice["stop_reason"] = *end.stop_string;
  if (end.deadline) choice["stop_reason"] = "deadline";
}

// Ids of the tokens of each choice, for those who want them.
class AnswerIds {
 public:
  explicit AnswerIds(const AnswerContext& context)
      : wanted_(context.settings.return_ids), ids_(context.choices) {}

  void add(size_t choice, int32_t id) {
    if (wanted_) ids_[choice].push_back(id);
  }
  // Adds the ids since the last call.
  void take(size_t choice, Json& json) {
    if (wanted_) json["token_ids"] = std::exchange(ids_[choice], {});
  }

 private:
  const bool wanted_;
  std::vector<std::vector<int32_t>> ids_;
};

// What chunks of both APIs share.
class ChunkWriter {
 public:
  ChunkWriter(const AnswerContext& context, const std::string& id, std::string_view object)
      : settings_(context.settings), usage_(context.usage) {
    const Json head = {
        {"id", id}, {"object", object}, {"created", context.created}, {"model", context.model}};
    head_ = text_of(head);
    head_.pop_back();  // its closing brace
  }

  void add(const Json& choice) { add_raw("[" + text_of(choice) + "]", settings_.continuous_usage); }
  void add_usage() {
    if (settings_.include_usage) add_raw("[]", true);
  }
  void add_done() { out_ += "data: [DONE]\n\n"; }
  void add_error(const std::string& body) { out_ += "data: " + body + "\n\n"; }
  std::string take() { return std::exchange(out_, {}); }
  // A field of the next chunk alone.
  void add_field(const std::string& name, const Json& value) {
    field_ += fmt::format(",\"{}\":{}", name, text_of(value));
  }

 private:
  void add_raw(const std::string& choices, bool with_usage) {
    out_ += "data: " + head_ + std::exchange(field_, {}) + ",\"choices\":" + choices;
    if (with_usage) {
      out_ += ",\"usage\":" + text_of(usage_json(*usage_));
    } else if (settings_.include_usage) {
      out_ += ",\"usage\":null";
    }
    out_ += "}\n\n";
  }

  const Settings& settings_;
  const Usage* usage_;
  std::string head_, field_, out_;
};

class ChatStream : public AnswerWriter {
 public:
  explicit ChatStream(AnswerContext context)
      : context_(std::move(context)),
        chunks_(context_, random_id("chatcmpl-"), "chat.completion.chunk"),
        ids_(context_) {
    for (size_t k = 0; k < context_.choices; ++k) choices_.emplace_back(*this, k);
  }

  OutputSink& sink(size_t choice) override { return choices_[choice]; }

  void logprobs(size_t choice, std::vector<TokenLogprob> tokens, bool reasoning) override {
    append_logprobs(choices_[choice].logprobs, tokens, reasoning);
  }

  void token(size_t choice, int32_t id) override { ids_.add(choice, id); }

  void begin() override {
    if (context_.settings.return_ids)
      chunks_.add_field("prompt_token_ids", context_.prompt_ids.front());
    for (size_t k = 0; k < choices_.size(); ++k)
      add_delta(k, {{"role", "assistant"}, {"content", ""}});
  }

  void finish(size_t choice, const ChoiceEnd& end) override {
    Json json = {{"index", choice}, {"delta", Json::object()}, {"finish_reason", finish_word(end)}};
    add_stop_reason(json, end);
    ids_.take(choice, json);
    chunks_.add(json);
  }

  void end() override {
    chunks_.add_usage();
    chunks_.add_done();
  }
  void fail(const ApiError& error) override {
    chunks_.add_error(error_body(Api::kChat, error, context_.request_id));
  }
  std::string take() override { return chunks_.take(); }

 private:
  class ChoiceSink : public OutputSink {
   public:
    ChoiceSink(ChatStream& stream, size_t index) : stream_(stream), index_(index) {}

    void on_reasoning(std::string_view text) override { forward(&ChatDeltas::on_reasoning, text); }
    void on_content(std::string_view text) override { forward(&ChatDeltas::on_content, text); }
    void on_arguments(std::string_view json) override { forward(&ChatDeltas::on_arguments, json); }
    void on_call(const std::string& name) override {
      deltas_.on_call(name);
      send();
    }
    void on_call_end() override {}

    Json logprobs = Json::object();  // of the next delta

   private:
    void forward(void (ChatDeltas::*event)(std::string_view), std::string_view text) {
      (deltas_.*event)(text);
      send();
    }
    void send() {
      for (Json& delta : deltas_.take()) stream_.add_delta(index_, std::move(delta));
    }

    ChatStream& stream_;
    size_t index_;
    ChatDeltas deltas_;
  };

  void add_delta(size_t choice, Json delta) {
    if (context_.reasoning_alias && delta.contains("reasoning_content"))
      delta["reasoning"] = delta["reasoning_content"];
    Json json = {{"index", choice}, {"delta", std::move(delta)}};
    Json& logprobs = choices_[choice].logprobs;
    if (!logprobs.empty()) json["logprobs"] = std::exchange(logprobs, Json::object());
    json["finish_reason"] = nullptr;
    ids_.take(choice, json);
    chunks_.add(json);
  }

  const AnswerContext context_;
  ChunkWriter chunks_;
  AnswerIds ids_;
  std::vector<ChoiceSink> choices_;
};

class ChatWhole : public AnswerWriter {
 public:
  explicit ChatWhole(AnswerContext context)
      : context_(std::move(context)), ids_(context_), choices_(context_.choices) {}

  OutputSink& sink(size_t choice) override { return choices_[choice].message; }
  void token(size_t choice, int32_t id) override { ids_.add(choice, id); }
  void logprobs(size_t choice, std::vector<TokenLogprob> tokens, bool reasoning) override {
    append_logprobs(choices_[choice].logprobs, tokens, reasoning);
  }
  void finish(size_t choice, const ChoiceEnd& end) override { choices_[choice].end = end; }
  void fail(const ApiError&) override {}

  void end() override {
    Json choices = Json::array();
    for (size_t k = 0; k < choices_.size(); ++k) {
      const Choice& choice = choices_[k];
      Json message = message_json(choice.message);
      message["refusal"] = nullptr;  // a model that declines says so in its content
      message["annotations"] = Json::array();
      if (context_.reasoning_alias && message.contains("reasoning_content"))
        message["reasoning"] = message["reasoning_content"];
      Json json = {{"index", k}, {"message", std::move(message)}};
      json["logprobs"] = choice.logprobs.empty() ? Json() : choice.logprobs;
      json["finish_reason"] = finish_word(choice.end);
      add_stop_reason(json, choice.end);
      ids_.take(k, json);
      choices.push_back(std::move(json));
    }
    Json body = {{"id", random_id("chatcmpl-")},  {"object", "chat.completion"},
                 {"created", context_.created},   {"model", context_.model},
                 {"choices", std::move(choices)}, {"usage", usage_json(*context_.usage)}};
    if (context_.settings.return_ids) body["prompt_token_ids"] = context_.prompt_ids.front();
    body_ = text_of(body);
  }
  std::string take() override { return std::exchange(body_, {}); }

 private:
  struct Choice {
    ChatMessage message;
    Json logprobs = Json::object();
    ChoiceEnd end;
  };
  const AnswerContext context_;
  AnswerIds ids_;
  std::vector<Choice> choices_;
  std::string body_;
};

// Both forms of /v1/completions: text is what the parser calls content.
class Completion : public AnswerWriter {
 public:
  explicit Completion(AnswerContext context)
      : context_(std::move(context)),
        id_(random_id("cmpl-")),
        chunks_(context_, id_, "text_completion"),
        ids_(context_) {
    for (size_t k = 0; k < context_.choices; ++k) choices_.emplace_back(*this, k);
  }

  OutputSink& sink(size_t choice) override { return choices_[choice]; }

  void logprobs(size_t choice, std::vector<TokenLogprob> tokens, bool) override {
    Choice& one = choices_[choice];
    for (const TokenLogprob& token : tokens) {
      const bool predicted = !std::isnan(token.logprob);
      one.logprobs["tokens"].push_back(token_text(token.bytes));
      one.logprobs["token_logprobs"].push_back(predicted ? Json(token.logprob) : Json());
      Json& top = one.logprobs["top_logprobs"];
      if (!token.top.empty()) {
        top.push_back(top_json(token));
      } else if (!predicted && context_.settings.sampling.top_logprobs > 0) {
        top.push_back(nullptr);
      }
      one.logprobs["text_offset"].push_back(one.offset);
      one.offset += token.shown ? token.bytes.size() : 0;
    }
  }

  void token(size_t choice, int32_t id) override { ids_.add(choice, id); }

  void begin() override {
    if (!context_.settings.echo || context_.settings.logprobs) return;
    for (size_t k = 0; k < choices_.size(); ++k) choices_[k].on_content(text_of_prompt(k));
  }

  void prompt_text(size_t choice) override { choices_[choice].on_content(text_of_prompt(choice)); }

  void finish(size_t choice, const ChoiceEnd& end) override {
    choices_[choice].end = end;
    if (context_.settings.stream) chunks_.add(choice_json(choice, "", finish_word(end)));
  }

  void end() override {
    if (context_.settings.stream) {
      chunks_.add_usage();
      chunks_.add_done();
      return;
    }
    Json choices = Json::array();
    for (size_t k = 0; k < choices_.size(); ++k)
      choices.push_back(choice_json(k, choices_[k].text, finish_word(choices_[k].end)));
    body_ = text_of(Json{{"id", id_},
                         {"object", "text_completion"},
                         {"created", context_.created},
                         {"model", context_.model},
                         {"choices", std::move(choices)},
                         {"usage", usage_json(*context_.usage)}});
  }
  void fail(const ApiError& error) override {
    chunks_.add_error(error_body(Api::kCompletions, error, context_.request_id));
  }
  std::string take() override {
    return context_.settings.stream ? chunks_.take() : std::exchange(body_, {});
  }

 private:
  class Choice : public OutputSink {
   public:
    Choice(Completion& answer, size_t index) : answer_(answer), index_(index) {}
    void on_reasoning(std::string_view piece) override { on_content(piece); }
    void on_content(std::string_view piece) override {
      if (answer_.context_.settings.stream) {
        answer_.chunks_.add(answer_.choice_json(index_, std::string(piece), nullptr));
      } else {
        text += piece;
      }
    }
    void on_call(const std::string&) override {}
    void on_arguments(std::string_view) override {}
    void on_call_end() override {}

    std::string text;
    Json logprobs = Json::object();
    size_t offset = 0;
    bool prompt_sent = false;  // the ids of the prompt
    ChoiceEnd end;

   private:
    Completion& answer_;
    size_t index_;
  };

  const std::string& text_of_prompt(size_t choice) const {
    return context_.prompt_texts[prompt_of(choice, context_.prompt_texts.size())];
  }
  size_t prompt_of(size_t choice, size_t prompts) const {
    return choice / (choices_.size() / prompts);
  }

  Json choice_json(size_t choice, std::string text, Json finish) {
    Choice& one = choices_[choice];
    Json json = {{"index", choice}, {"text", std::move(text)}};
    json["logprobs"] = one.logprobs.empty() ? Json() : std::exchange(one.logprobs, Json::object());
    json["finish_reason"] = finish;
    if (!finish.is_null()) add_stop_reason(json, one.end);
    ids_.take(choice, json);
    if (context_.settings.return_ids && !std::exchange(one.prompt_sent, true))
      json["prompt_token_ids"] = context_.prompt_ids[prompt_of(choice, context_.prompt_ids.size())];
    return json;
  }

  const AnswerContext context_;
  const std::string id_;
  ChunkWriter chunks_;
  AnswerIds ids_;
  std::vector<Choice> choices_;
  std::string body_;
};

}  // namespace

std::unique_ptr<AnswerWriter> chat_writer(AnswerContext context) {
  if (context.settings.stream) return std::make_unique<ChatStream>(std::move(context));
  return std::make_unique<ChatWhole>(std::move(context));
}

std::unique_ptr<AnswerWriter> completion_writer(AnswerContext context) {
  return std::make_unique<Completion>(std::move(context));
}

}  // namespace dsv4
