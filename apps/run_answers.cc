#include "apps/run_answers.h"

#include <unistd.h>

#include <cstdio>
#include <nlohmann/json.hpp>

#include "apps/json_report.h"
#include "dsv4/base/error.h"
#include "dsv4/base/quote.h"

namespace dsv4::apps {
namespace {

// A model may write an escape sequence; a terminal must not obey it. Line ends and tabs stay.
std::string harmless(const std::string& text) {
  std::string out;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find_first_of("\n\t", begin), text.size());
    out += printable(std::string_view(text).substr(begin, end - begin), text.size());
    if (end < text.size()) out += text[end];
    begin = end + 1;
  }
  return out;
}

}  // namespace

Answers::Answers(Engine& engine, const Tokenizer& tokenizer, AnswerOptions options,
                 std::function<void()> first)
    : engine_(engine),
      tokenizer_(tokenizer),
      options_(std::move(options)),
      first_(std::move(first)),
      terminal_(isatty(STDOUT_FILENO) != 0) {
}

void Answers::add(RequestId id, RunPrompt prompt, int64_t prompt_tokens, uint64_t seed) {
  Answer& answer = answers_.emplace_back();
  answer.prompt = std::move(prompt);
  answer.prompt_tokens = prompt_tokens;
  answer.seed = seed;
  open_.emplace(id, Open{&answer, StreamDecoder(tokenizer_, !options_.show_special),
                         StopText(options_.stops)});
}

void Answers::on_token(RequestId id, const Sampled& token) {
  if (tokens_++ == 0) first_token_ = std::chrono::steady_clock::now();
  Open& open = open_.at(id);
  Answer& answer = *open.answer;
  answer.ids.push_back(token.id);
  if (open.stop.found()) return;  // computed before the request was cancelled
  ++answer.tokens;
  if (options_.logprobs) answer.logprobs.push_back(token);
  answer.text += open.stop.push(open.decoder.push(token.id));
  if (open.stop.found()) engine_.cancel(id);
  print_ready();
}

void Answers::on_finish(RequestId id, Finish why) {
  Open& open = open_.at(id);
  Answer& answer = *open.answer;
  if (!open.stop.found()) {
    answer.text += open.stop.push(open.decoder.finish());
    answer.text += open.stop.finish();
  }
  answer.why = open.stop.found() ? "stop text" : name(why);
  answer.finished = true;
  open_.erase(id);
  print_ready();
}

void Answers::print_ready() {
  while (printing_ < answers_.size()) {
    Answer& answer = answers_[printing_];
    if (options_.json) {
      if (!answer.finished) return;
      if (!started_) first_();
      print_json(answer);
    } else {
      if (answer.text.size() > answer.shown || answer.finished) {
        if (!started_) {
          first_();
          if (options_.headers)
            print(fmt::format("{}==> {} <==\n", printing_ > 0 ? "\n" : "", answer.prompt.name));
          if (options_.echo) print(answer.prompt.text);
          started_ = true;
        }
        print(answer.text.substr(answer.shown));
        answer.shown = answer.text.size();
      }
      if (!answer.finished) return;
      print("\n");
    }
    started_ = false;
    ++printing_;
  }
}

void Answers::print_json(const Answer& answer) const {
  nlohmann::ordered_json line = {
      {"index", printing_},
      {"text", options_.echo ? answer.prompt.text + answer.text : answer.text},
      {"finish", answer.why},
      {"prompt_tokens", answer.prompt_tokens},
      {"generated_tokens", answer.tokens},
      {"seed", answer.seed}};
  if (options_.logprobs) {
    const auto json_of = [this](int32_t id, float logprob) {
      return nlohmann::ordered_json{
          {"id", id}, {"token", std::string(tokenizer_.token_bytes(id))}, {"logprob", logprob}};
    };
    auto list = nlohmann::ordered_json::array();
    for (const Sampled& token : answer.logprobs) {
      auto entry = json_of(token.id, token.logprob);
      for (const LikelyToken& one : token.top) entry["top"].push_back(json_of(one.id, one.logprob));
      list.push_back(std::move(entry));
    }
    line["tokens"] = list;
  }
  print(dump(line) + "\n");
}

void Answers::print(const std::string& text) const {
  const std::string shown = terminal_ && !options_.json ? harmless(text) : text;
  const bool written = std::fwrite(shown.data(), 1, shown.size(), stdout) == shown.size() &&
                       std::fflush(stdout) == 0;
  if (!written) fail(ErrorCode::kIo, "cannot write to standard output");
}

}  // namespace dsv4::apps
