// AnswerWriter: one API's form of an answer, whole or as a stream of events
// (docs/spec/serving.md 2.5, 3.3). The parser of each choice reports into sink(choice).
//
//   begin, then sinks and finish() for each choice, end, with take() wherever output may leave

#pragma once

#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "dsv4/chat/output_parser.h"
#include "dsv4/chat/output_sink.h"
#include "dsv4/chat/translated.h"
#include "dsv4/server/settings.h"

namespace dsv4 {

// Tokens, markers and the end of the sentence included.
struct Usage {
  int64_t prompt = 0, cached = 0, completion = 0, reasoning = 0;
  // Tokens of the client's prediction that were tried as drafts.
  int64_t accepted_prediction = 0, rejected_prediction = 0;
};

// How long the parts of a request took, in seconds.
struct Times {
  double queue = 0;         // until the engine took it
  double first_token = -1;  // since it came; negative: there is none yet
  double total = 0;         // since it came, once it is over
};

struct ChoiceEnd {
  FinishReason reason = FinishReason::kStop;
  std::optional<std::string> stop_string;
  bool deadline = false;     // kLength because time was up
  bool context_end = false;  // kLength because the context is full
};

struct TokenLogprob {
  std::string bytes;
  float logprob = 0;              // NaN: of the first token of a prompt, which nothing predicts
  bool shown = true;              // false: a marker, which the text leaves out
  std::vector<TokenLogprob> top;  // the likeliest tokens in this place, where they were asked for
};

// An error as a client gets it.
struct ApiError {
  int status = 500;
  std::string code, param, message;
  int64_t retry_after = 0;  // seconds; 0: no header
};

// Error of an exception: bad input in its own words, everything else as "internal error".
ApiError api_error(const std::exception& exception);

class AnswerWriter {
 public:
  virtual ~AnswerWriter() = default;
  virtual OutputSink& sink(size_t choice) = 0;
  // Log-probabilities of the tokens whose text the next call of a sink has.
  virtual void logprobs(size_t, std::vector<TokenLogprob>, bool /*reasoning*/) {}
  // A token of the answer, before what its text becomes.
  virtual void token(size_t /*choice*/, int32_t /*id*/) {}
  virtual void begin() {}
  // Before the first token of the answer, when logprobs() has had those of the prompt: echo
  // together with logprobs.
  virtual void prompt_text(size_t /*choice*/) {}
  virtual void finish(size_t choice, const ChoiceEnd& end) = 0;
  virtual void end() = 0;
  virtual void fail(const ApiError& error) = 0;  // inside a stream
  // The content type of a stream, and what it has while nothing comes.
  virtual const char* stream_type() const { return "text/event-stream; charset=utf-8"; }
  virtual std::string keep_alive() const { return ": keep-alive\n\n"; }
  // Events since the last call; of an answer that is whole, its body after end().
  virtual std::string take() = 0;
};

// What every writer needs to know of its request.
struct AnswerContext {
  std::string model;
  int64_t created = 0;
  std::string request_id;
  size_t choices = 1;
  Settings settings;
  const Usage* usage = nullptr;  // kept up to date by the generation, as are the times
  const Times* times = nullptr;
  std::vector<std::string> prompt_texts;         // completions with echo: of each prompt
  std::vector<std::vector<int32_t>> prompt_ids;  // of each prompt, with settings.return_ids
  bool reasoning_alias = false;
  // Responses only.
  JsonValue body;
  Translated request;
  std::string seal_key;  // 32 bytes
};

std::unique_ptr<AnswerWriter> chat_writer(AnswerContext context);
std::unique_ptr<AnswerWriter> completion_writer(AnswerContext context);
std::unique_ptr<AnswerWriter> messages_writer(AnswerContext context);
std::unique_ptr<AnswerWriter> responses_writer(AnswerContext context);
std::unique_ptr<AnswerWriter> ollama_writer(AnswerContext context, bool is_chat);

// "invalid_request_error" and the like; `api` decides the names.
std::string error_type(int status);
// The status that a client gets: Messages has its own for overload.
int status_of(Api api, const ApiError& error);
// The body of an error. Messages and Ollama have their own forms.
std::string error_body(Api api, const ApiError& error, const std::string& request_id);

}  // namespace dsv4
