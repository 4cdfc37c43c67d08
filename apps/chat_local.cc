#include <chrono>
#include <exception>
#include <optional>
#include <random>

#include "apps/chat_backend.h"
#include "dsv4/base/error.h"
#include "dsv4/chat/feed_token.h"
#include "dsv4/chat/output_parser.h"
#include "dsv4/chat/render.h"

namespace dsv4::apps {
namespace {

using Clock = std::chrono::steady_clock;

// Feeds the parser with the engine's tokens. What the parser's sink throws is kept until the
// request has finished: the engine uses the reader until then, and a step that throws loses events.
class TokenReader : public TokenSink {
 public:
  TokenReader(OutputParser& parser, const ServedModel& text) : parser_(parser), text_(text) {}
  void on_token(RequestId, const Sampled& sampled) override {
    if (tokens++ == 0) first = Clock::now();
    if (error) return;
    try {
      feed_token(parser_, sampled.id, *text_.tokenizer, text_.markers);
    } catch (const std::exception&) {
      error = std::current_exception();
    }
  }
  void on_finish(RequestId, Finish why) override { finish = why; }

  int64_t tokens = 0;
  Clock::time_point first = Clock::now();
  std::optional<Finish> finish;
  std::exception_ptr error;

 private:
  OutputParser& parser_;
  const ServedModel& text_;
};

class LocalChat : public ChatBackend {
 public:
  explicit LocalChat(const ChatModelOptions& options) : model_(load_chat_model(options)) {}

  ChatAnswer answer(const JsonValue& body, const SamplingOptions& sampling, OutputSink& sink,
                    const std::function<bool()>& stopped) override;
  void check(const JsonValue& body) const override { read_chat_request(body, model_.text->chat); }
  std::string count_tokens(const JsonValue& body) override {
    const Prompt prompt = render(read_chat_request(body, model_.text->chat));
    return fmt::format("{} of {} tokens",
                       encode(prompt, model_.text->markers, model_.text->text).size(),
                       model_.text->limits.context);
  }

 private:
  GenerateParams params_of(const Conversation& conversation, int64_t prompt_tokens,
                           const SamplingOptions& sampling) const;

  ChatModel model_;
};

GenerateParams LocalChat::params_of(const Conversation& conversation, int64_t prompt_tokens,
                                    const SamplingOptions& sampling) const {
  const ServedModel& text = *model_.text;
  const int64_t room = text.limits.context - prompt_tokens;
  if (room < 1) {
    fail(ErrorCode::kBadInput, "the conversation has {} tokens, the context {}: /undo or leave",
         prompt_tokens, text.limits.context);
  }
  GenerateParams params{.sampling = sampling.applied_to(text.sampling),
                        .max_new_tokens = std::min(
                            room, default_max_tokens(conversation.thinking, conversation.effort)),
                        .stop = text.limits.eos,
                        .logit_bias = sampling.logit_bias};
  params.sampling.seed = sampling.seed ? *sampling.seed : std::random_device{}();
  return params;
}

ChatAnswer LocalChat::answer(const JsonValue& body, const SamplingOptions& sampling,
                             OutputSink& sink, const std::function<bool()>& stopped) {
  const ServedModel& text = *model_.text;
  const Conversation conversation = read_chat_request(body, text.chat);
  const Prompt prompt = render(conversation, &text.replay);
  const std::vector<int32_t> ids = encode(prompt, text.markers, text.text);
  const auto prompt_tokens = static_cast<int64_t>(ids.size());
  OutputParser parser({.stage = prompt.stage, .continues = prompt.continues}, sink);
  TokenReader reader(parser, text);
  const auto begin = Clock::now();
  const RequestId request =
      model_.engine->submit(ids, params_of(conversation, prompt_tokens, sampling), reader);
  while (!reader.finish) {
    if (stopped() || reader.error) model_.engine->cancel(request);
    model_.engine->step();
  }
  if (reader.error) std::rethrow_exception(reader.error);
  parser.finish(*reader.finish == Finish::kStop ? OutputEnd::kModel : OutputEnd::kLimit);
  const auto seconds = [](auto time) { return std::chrono::duration<double>(time).count(); };
  return {.prompt_tokens = prompt_tokens,
          .tokens = reader.tokens,
          .first_seconds = seconds(reader.first - begin),
          .rest_seconds = seconds(Clock::now() - reader.first)};
}

}  // namespace

std::unique_ptr<ChatBackend> local_chat(const ChatModelOptions& options) {
  return std::make_unique<LocalChat>(options);
}

}  // namespace dsv4::apps
