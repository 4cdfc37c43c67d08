// What `dsv4 run` prints: the answers of several prompts, in their order, as text or as one JSON
// object per line. Requests run side by side; the first unfinished answer is shown as it arrives,
// the others wait for their turn.

#pragma once

#include <chrono>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "apps/common.h"
#include "apps/run_prompts.h"
#include "dsv4/engine/engine.h"
#include "dsv4/text/stop_text.h"
#include "dsv4/text/stream_decoder.h"

namespace dsv4::apps {

struct AnswerOptions {
  std::vector<std::string> stops;  // texts that end an answer
  bool show_special = false, echo = false, headers = false;
  bool json = false;
  std::optional<int> logprobs;  // of this many likeliest tokens in each place, too
};

struct Answer {
  RunPrompt prompt;
  int64_t prompt_tokens = 0, tokens = 0;
  std::string text;  // all of it, of which `shown` bytes are printed
  size_t shown = 0;
  bool finished = false;
  std::string why;  // "stop" (a token), "stop text", "length"
  uint64_t seed = 0;
  std::vector<Sampled> logprobs;
  std::vector<int32_t> ids;  // all that the model wrote, also after a stop text
};

class Answers : public TokenSink {
 public:
  // first: called once, before the first text is printed.
  Answers(Engine& engine, const Tokenizer& tokenizer, AnswerOptions options,
          std::function<void()> first);

  // Answers are printed in the order of these calls.
  void add(RequestId id, RunPrompt prompt, int64_t prompt_tokens, uint64_t seed);
  void on_token(RequestId id, const Sampled& token) override;
  void on_finish(RequestId id, Finish why) override;

  int64_t tokens() const { return tokens_; }
  std::chrono::steady_clock::time_point first_token() const { return first_token_; }
  const std::deque<Answer>& all() const { return answers_; }

 private:
  struct Open {
    Answer* answer;
    StreamDecoder decoder;
    StopText stop;
  };
  void print_ready();
  void print_json(const Answer& answer) const;
  void print(const std::string& text) const;

  Engine& engine_;
  const Tokenizer& tokenizer_;
  const AnswerOptions options_;
  std::function<void()> first_;
  const bool terminal_;
  std::deque<Answer> answers_;
  std::map<RequestId, Open> open_;
  size_t printing_ = 0;   // the first answer that is not printed to its end
  bool started_ = false;  // its header and echo are printed
  int64_t tokens_ = 0;
  std::chrono::steady_clock::time_point first_token_;
};

}  // namespace dsv4::apps
