// Choice: one answer of a request, from the engine's tokens to the parser's events.
//
//   token -> marker or bytes -> OutputParser -> (reasoning counted, log probabilities) -> writer

#pragma once

#include <memory>

#include "dsv4/server/answer.h"
#include "dsv4/server/prepare.h"

namespace dsv4 {

class Choice : private OutputSink {
 public:
  // All must outlive the choice; `prepared` and `model` stay as they are.
  Choice(size_t index, const Prepared& prepared, const ServedModel& model, AnswerWriter& writer,
         Usage& usage);

  // A token of the prompt, in order, before the first of the answer: echo together with logprobs.
  void on_prompt_token(const Sampled& sampled);
  // Either may end the choice.
  void on_token(const Sampled& sampled);
  void on_engine_finish(Finish why);
  // Time is up, or the server drains.
  void end_at_deadline();

  bool ended() const { return ended_; }
  const ChoiceEnd& end() const { return end_; }
  const ParseCounts& counts() const { return parser_.counts(); }
  const std::vector<int32_t>& ids() const { return ids_; }

 private:
  void on_reasoning(std::string_view text) override;
  void on_content(std::string_view text) override;
  void on_call(const std::string& name) override;
  void on_arguments(std::string_view json) override { out_.on_arguments(json); }
  void on_call_end() override { out_.on_call_end(); }

  std::string_view bytes_of(int32_t token) const;
  TokenLogprob logprob_of(const Sampled& sampled) const;
  void begin_prompt();
  void release_prompt();
  void release_logprobs(bool reasoning);
  void finish(OutputEnd end);
  void record_turn();

  const size_t index_;
  const Prepared& prepared_;
  const ServedModel& model_;
  AnswerWriter& writer_;
  OutputSink& out_;
  Usage& usage_;
  OutputParser parser_;
  bool reasoning_;  // the output is still in its reasoning
  std::vector<TokenLogprob> held_;
  bool prompt_begun_ = false, prompt_released_ = false;
  std::vector<int32_t> ids_;  // of the answer, for the replay map and the log
  bool ended_ = false;
  ChoiceEnd end_;
};

}  // namespace dsv4
