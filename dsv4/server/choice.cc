#include "dsv4/server/choice.h"

#include <limits>

namespace dsv4 {

Choice::Choice(size_t index, const Prepared& prepared, const ServedModel& model,
               AnswerWriter& writer, Usage& usage)
    : index_(index),
      prepared_(prepared),
      model_(model),
      writer_(writer),
      out_(writer.sink(index)),
      usage_(usage),
      parser_(prepared.parser, *this),
      reasoning_(prepared.parser.stage == OutputStage::kReason) {
}

// Empty for an id of the model that the tokenizer does not have.
std::string_view Choice::bytes_of(int32_t token) const {
  return token >= model_.text_ids() ? std::string_view() : model_.tokenizer->token_bytes(token);
}

TokenLogprob Choice::logprob_of(const Sampled& sampled) const {
  const std::string_view bytes = bytes_of(sampled.id);
  TokenLogprob out{.bytes = std::string(bytes),
                   .logprob = sampled.logprob,
                   .shown = !bytes.empty() && !model_.tokenizer->is_special(sampled.id)};
  for (const LikelyToken& one : sampled.top)
    out.top.push_back({.bytes = std::string(bytes_of(one.id)), .logprob = one.logprob});
  return out;
}

void Choice::on_token(const Sampled& sampled) {
  if (ended_) return;
  release_prompt();
  const int32_t token = sampled.id;
  ++usage_.completion;
  writer_.token(index_, token);
  const auto marker = model_.markers.marker(token);
  if (marker == Marker::kThinkEnd) reasoning_ = false;
  if (reasoning_) ++usage_.reasoning;
  const std::string_view bytes = bytes_of(token);
  if (!bytes.empty()) ids_.push_back(token);
  const bool plain = !marker || !prepared_.is_chat;
  if (prepared_.settings.logprobs && plain) held_.push_back(logprob_of(sampled));
  if (!plain) {
    if (*marker != Marker::kEos) parser_.marker(*marker);  // which ignore_eos lets through
  } else if (!bytes.empty() && (prepared_.is_chat || !model_.tokenizer->is_special(token))) {
    parser_.text(bytes);
  }
  if (parser_.done()) finish(OutputEnd::kModel);
}

void Choice::on_engine_finish(Finish why) {
  if (ended_) return;
  if (why == Finish::kStop) {
    ++usage_.completion;  // the end of the sentence, which the engine does not deliver
    record_turn();
  }
  end_.context_end = why == Finish::kLength && prepared_.fills_context;
  finish(why == Finish::kStop ? OutputEnd::kModel : OutputEnd::kLimit);
}

void Choice::end_at_deadline() {
  if (ended_) return;
  end_.deadline = true;
  finish(OutputEnd::kLimit);
}

void Choice::finish(OutputEnd end) {
  ended_ = true;
  release_prompt();
  end_.reason = parser_.finish(end);
  end_.stop_string = parser_.stop_string();
  if (end_.stop_string && prepared_.settings.include_stop) out_.on_content(*end_.stop_string);
  writer_.finish(index_, end_);
}

void Choice::record_turn() {
  if (!prepared_.is_chat || prepared_.continues) return;
  record_output(model_.replay, prepared_.settings.salt, prepared_.parser, ids_, *model_.tokenizer,
                model_.markers);
}

// The writer gets the tokens of a long prompt as the engine gives them, some in each step: writing
// all of them at its end would hold up every other stream of the server.
void Choice::on_prompt_token(const Sampled& sampled) {
  begin_prompt();
  writer_.logprobs(index_, {logprob_of(sampled)}, /*reasoning=*/false);
}

void Choice::begin_prompt() {
  if (std::exchange(prompt_begun_, true)) return;
  const auto& ids = prepared_.prompts[index_ / static_cast<size_t>(prepared_.settings.n)];
  const Sampled first{.id = ids.front(), .logprob = std::numeric_limits<float>::quiet_NaN()};
  writer_.logprobs(index_, {logprob_of(first)}, /*reasoning=*/false);
}

void Choice::release_prompt() {
  const Settings& settings = prepared_.settings;
  if (!settings.echo || !settings.logprobs || std::exchange(prompt_released_, true)) return;
  begin_prompt();
  writer_.prompt_text(index_);
}

void Choice::release_logprobs(bool reasoning) {
  if (!held_.empty()) writer_.logprobs(index_, std::exchange(held_, {}), reasoning);
}

void Choice::on_reasoning(std::string_view text) {
  release_logprobs(true);
  out_.on_reasoning(text);
}

void Choice::on_content(std::string_view text) {
  reasoning_ = false;
  release_logprobs(false);
  out_.on_content(text);
}

void Choice::on_call(const std::string& name) {
  reasoning_ = false;
  held_.clear();  // of markup
  out_.on_call(name);
}

}  // namespace dsv4
