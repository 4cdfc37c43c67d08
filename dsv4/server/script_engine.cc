#include <algorithm>
#include <chrono>
#include <map>
#include <thread>

#include "dsv4/base/error.h"
#include "dsv4/chat/fields.h"
#include "dsv4/server/engine_port.h"
#include "dsv4/server/numbers.h"
#include "dsv4/text/tokenizer.h"

namespace dsv4 {
namespace {

struct Rule {
  std::string match;
  std::vector<int32_t> ids;
  Finish finish = Finish::kStop;
  std::chrono::milliseconds step{0};
  int64_t fault_after = -1;
};

Rule read_rule(const JsonValue& line, const std::string& where, const Tokenizer& tokenizer,
               int32_t vocab_size) {
  const Field field(&line, where);
  Rule rule{.match = field.at("match").string_or("")};
  std::vector<int32_t> once;
  if (const Field ids = field.at("ids"); ids.present()) {
    for (size_t i = 0; i < ids.list(); ++i)
      once.push_back(static_cast<int32_t>(*read_integer(ids.at(i), 0, vocab_size - 1)));
  } else {
    once = tokenizer.encode(field.at("output").string());
  }
  const int64_t repeat = read_integer(field.at("repeat"), 1, 1'000'000).value_or(1);
  for (int64_t i = 0; i < repeat; ++i) rule.ids.insert(rule.ids.end(), once.begin(), once.end());
  if (field.at("finish").string_or("stop") == "length") rule.finish = Finish::kLength;
  rule.step = std::chrono::milliseconds(read_integer(field.at("step_ms"), 0, 600'000).value_or(0));
  rule.fault_after = read_integer(field.at("fault_after"), 0, 1 << 30).value_or(-1);
  return rule;
}

class ScriptEngine : public EnginePort {
 public:
  ScriptEngine(std::vector<Rule> rules, std::shared_ptr<const Tokenizer> tokenizer,
               EngineLimits limits)
      : rules_(std::move(rules)), tokenizer_(std::move(tokenizer)), limits_(std::move(limits)) {}

  const EngineLimits& limits() const override { return limits_; }

  RequestId submit(std::span<const int32_t> prompt, const GenerateParams& params,
                   TokenSink& sink) override {
    const std::string text = tokenizer_->decode(prompt);
    const auto rule = std::find_if(rules_.begin(), rules_.end(), [&](const Rule& one) {
      return text.find(one.match) != text.npos;
    });
    if (rule == rules_.end()) fail(ErrorCode::kBadInput, "the script has no line for this prompt");
    const auto id = static_cast<RequestId>(next_id_++);
    running_[id] = {&*rule, params.max_new_tokens, &sink};
    if (params.score_prompt) running_[id].prompt.assign(prompt.begin() + 1, prompt.end());
    stats_.prefill_tokens += static_cast<int64_t>(prompt.size());
    return id;
  }

  void cancel(RequestId id) override { cancelled_.push_back(id); }

  bool step() override {
    for (const RequestId id : std::exchange(cancelled_, {})) {
      const auto at = running_.find(id);
      if (at == running_.end()) continue;
      TokenSink* sink = at->second.sink;
      running_.erase(at);
      sink->on_finish(id, Finish::kCancelled);
    }
    std::chrono::milliseconds longest{0};
    for (const auto& [id, one] : running_) longest = std::max(longest, one.rule->step);
    if (longest.count() > 0) std::this_thread::sleep_for(longest);
    ++stats_.steps;
    for (auto at = running_.begin(); at != running_.end();) {
      const auto [id, one] = *at;
      if (one.rule->fault_after == static_cast<int64_t>(one.sent))
        fail(ErrorCode::kUnsupported, "the script wants a fault");
      for (const int32_t token : std::exchange(at->second.prompt, {}))
        one.sink->on_prompt_token(id, {.id = token, .logprob = -0.5f});
      const bool ended = one.sent == one.rule->ids.size();
      if (!ended) {
        ++at->second.sent;
        ++stats_.decode_tokens;
        one.sink->on_token(id, {.id = one.rule->ids[one.sent], .logprob = -0.5f});
      }
      const bool at_limit = static_cast<int64_t>(at->second.sent) == one.max_tokens;
      if (!ended && !at_limit) {
        ++at;
        continue;
      }
      at = running_.erase(at);
      one.sink->on_finish(id, ended ? one.rule->finish : Finish::kLength);
    }
    return !running_.empty();
  }

  EngineStats stats() const override { return stats_; }

 private:
  struct Running {
    const Rule* rule;
    int64_t max_tokens;
    TokenSink* sink;
    size_t sent = 0;
    std::vector<int32_t> prompt;  // that is to be scored
  };

  std::vector<Rule> rules_;
  std::shared_ptr<const Tokenizer> tokenizer_;
  EngineLimits limits_;
  std::map<RequestId, Running> running_;
  std::vector<RequestId> cancelled_;
  uint64_t next_id_ = 1;
  EngineStats stats_;
};

}  // namespace

std::unique_ptr<EnginePort> script_engine(const std::string& text, const std::string& file,
                                          std::shared_ptr<const Tokenizer> tokenizer,
                                          const EngineLimits& limits) {
  std::vector<Rule> rules;
  size_t number = 0;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    const std::string line = text.substr(begin, end - begin);
    begin = end + 1;
    ++number;
    if (line.find_first_not_of(" \t\r") == line.npos) continue;
    const std::string where = fmt::format("{}:{}", file, number);
    rules.push_back(read_rule(parse_json(line, where), where, *tokenizer, limits.vocab_size));
  }
  if (rules.empty()) fail(ErrorCode::kBadInput, "{}: no lines", file);
  return std::make_unique<ScriptEngine>(std::move(rules), std::move(tokenizer), limits);
}

}  // namespace dsv4
