// The grammar of an answer, as the engine follows it (docs/spec/serving.md 3.4).
//
//   thinking --</think>--> text --"<" and the DSML marker--> calls   tools that may be used
//   thinking --</think>--> the grammar                               a format, forced tools
//
// Text and thinking are free. Where the grammar is forced, the sentence cannot end before it, and
// no calls can begin in the thinking. A budget of thinking ends with </think> as the only token.

#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "dsv4/chat/conversation.h"
#include "dsv4/chat/prompt.h"
#include "dsv4/engine/token_constraint.h"
#include "dsv4/grammar/token_masks.h"

namespace dsv4 {

struct ServedModel;

// How much work the masks of one request may take, beyond what earlier requests have left in the
// grammar: so much at once, and so much for each mask on average. The steps are deterministic; the
// time of the processor is a guard against work that no step counts.
class MaskBudget {
 public:
  static constexpr uint64_t kStepsAtOnce = 400'000, kStepsEach = 10'000;
  static constexpr uint64_t kNanosecondsAtOnce = 500'000'000, kNanosecondsEach = 10'000'000;

  // Error kResource where the budget is spent.
  void mask(TokenMasks& masks, TokenMasks::State state, std::span<uint32_t> out);

 private:
  std::atomic<uint64_t> masks_ = 0, steps_ = 0, nanoseconds_ = 0;
};

// Computes some masks from the beginning on, as a model would meet them. Error kResource where a
// request with this grammar would get past its budget.
void try_masks(TokenMasks& masks, size_t words);

class AnswerConstraint : public TokenConstraint {
 public:
  struct Options {
    bool forced = true;  // the answer must be of the grammar; otherwise only its calls
    bool thinking = false;
    int64_t thinking_budget = 0;  // tokens; 0: any number
    std::string begun;            // of the answer, in the prompt
    int32_t think_end = -1, dsml = -1;
    std::vector<int32_t> eos;
  };
  // The grammar of calls that are not forced begins with "\n\n<" and DSML; null: there is none, and
  // the answer is not forced. RequestError where the grammar does not allow `begun`.
  AnswerConstraint(std::shared_ptr<TokenMasks> masks, std::shared_ptr<const Tokenizer> tokenizer,
                   Options options);

  State start() override { return start_; }
  State advance(State state, int32_t token) override;
  bool restricts(State state) override {
    return base(state) >= kGrammar || options_.forced || at_budget(state);
  }
  void mask(State state, std::span<uint32_t> out) override;
  void mask_ahead(State state, std::span<uint32_t> out) override;

 private:
  // States before the grammar; those of the grammar follow. kLess: the text ends in "<", so that a
  // tag may begin. Where the thinking has a budget, its states count their tokens: kOneToken each.
  static constexpr State kThinking = 0, kThinkingLess = 1, kText = 2, kTextLess = 3, kGrammar = 4;
  static constexpr State kOneToken = State{1} << 32;

  static State base(State state) { return state < 0 ? state : state % kOneToken; }
  static bool is_thinking(State state) {
    return base(state) == kThinking || base(state) == kThinkingLess;
  }
  bool at_budget(State state) const {
    return options_.thinking_budget > 0 && is_thinking(state) &&
           state / kOneToken >= options_.thinking_budget;
  }
  State begin() const { return options_.forced ? in_grammar_ : kText; }
  static State of(TokenMasks::State state) {
    return state == TokenMasks::kDead ? kEnded : kGrammar + state;
  }

  const std::shared_ptr<TokenMasks> masks_;
  const std::shared_ptr<const Tokenizer> tokenizer_;
  const Options options_;
  MaskBudget budget_;
  State in_grammar_ = kEnded;  // where the grammar is entered
  State start_ = kThinking;
};

// Null where nothing constrains the answer. RequestError `unsupported_schema` for what is not in
// the subset of schemas. `single_call`: parallel_tool_calls is false.
std::shared_ptr<TokenConstraint> answer_constraint(const ServedModel& model,
                                                   const Conversation& conversation,
                                                   OutputStage stage, bool single_call);
// Constraint of an answer that is text only.
std::shared_ptr<TokenConstraint> format_constraint(const ServedModel& model,
                                                   const ResponseFormat& format);

}  // namespace dsv4
