#include "dsv4/server/answer_constraint.h"

#include <algorithm>
#include <ctime>

#include "dsv4/chat/request_error.h"
#include "dsv4/grammar/ebnf_grammar.h"
#include "dsv4/grammar/schema_grammar.h"
#include "dsv4/grammar/tool_grammar.h"
#include "dsv4/server/served_model.h"

namespace dsv4 {
namespace {

bool forces_tools(const Conversation& conversation) {
  return !conversation.tools.empty() && conversation.tool_choice != ToolChoice::kAuto;
}

// What identifies a grammar: everything that it is made from.
std::string key_of(const ResponseFormat& format) {
  switch (format.kind) {
    case ResponseFormat::Kind::kText:
      return "text";
    case ResponseFormat::Kind::kJsonObject:
      return "object";
    case ResponseFormat::Kind::kJsonSchema:
      return (format.strict ? "strict schema " : "schema ") + to_json(format.schema);
    case ResponseFormat::Kind::kRegex:
      return "regex " + format.regex;
    case ResponseFormat::Kind::kGrammar:
      return "grammar " + format.grammar;
  }
  return "";
}

std::string key_of(const std::vector<ToolDefinition>& tools, const ToolGrammarOptions& options) {
  std::string key = fmt::format("tools {} {} {} ", static_cast<int>(options.schemas),
                                options.single ? 1 : 0, options.inside_block ? 1 : 0);
  JsonValue list = JsonValue::array();
  list.items.push_back(JsonValue::of_string(options.only));
  for (const ToolDefinition& tool : tools) {
    list.items.push_back(JsonValue::of_string(tool.name));
    list.items.push_back(JsonValue::of_bool(tool.strict));
    list.items.push_back(tool.parameters);
  }
  return key + to_json(list);
}

Automaton grammar_of(const ResponseFormat& format) {
  switch (format.kind) {
    case ResponseFormat::Kind::kJsonSchema:
      return json_schema_grammar(
          format.schema, format.strict ? JsonSpaces::kNone : JsonSpaces::kSome, format.param);
    case ResponseFormat::Kind::kRegex:
      return regex_format_grammar(format.regex, format.param);
    case ResponseFormat::Kind::kGrammar:
      return ebnf_format_grammar(format.grammar, format.param);
    default:
      return json_object_grammar();
  }
}

ToolGrammarOptions tool_options(const ServedModel& model, const Conversation& conversation,
                                bool inside_block, bool single_call) {
  const bool forced = forces_tools(conversation);
  ToolGrammarOptions options{.only = conversation.chosen_tool,
                             .single = single_call || !conversation.chosen_tool.empty(),
                             .inside_block = inside_block};
  switch (model.tool_grammar) {
    case ToolGrammar::kOff:
    case ToolGrammar::kTags:
      options.schemas = ToolSchemas::kNone;
      break;
    case ToolGrammar::kStrict:
      options.schemas = forced ? ToolSchemas::kUsable : ToolSchemas::kStrict;
      break;
    case ToolGrammar::kAll:
      options.schemas = ToolSchemas::kUsable;
      break;
  }
  return options;
}

// param: of the request, for errors
std::shared_ptr<TokenMasks> compiled(const ServedModel& model, const std::string& param,
                                     const std::string& key,
                                     const std::function<Automaton()>& make) {
  try {
    return model.grammars.get(model.limits, key, make);
  } catch (const RequestError&) {
    throw;
  } catch (const Error& error) {
    if (error.code() == ErrorCode::kResource)
      throw RequestError("grammar_memory", param, "other answers' grammars take it all", 503);
    if (error.code() != ErrorCode::kBadInput) throw;
    throw RequestError("unsupported_schema", param, error.what());
  }
}

// A client's own grammar may be costly beyond what its size says, so its first masks are made here,
// outside the steps that all answers share.
std::shared_ptr<TokenMasks> of_format(const ServedModel& model, const ResponseFormat& format) {
  auto masks = compiled(model, format.param, key_of(format), [&] { return grammar_of(format); });
  const bool own =
      format.kind == ResponseFormat::Kind::kGrammar || format.kind == ResponseFormat::Kind::kRegex;
  if (!own) return masks;
  try {
    try_masks(*masks, static_cast<size_t>(model.limits.vocab_size + 31) / 32);
  } catch (const Error& error) {
    throw RequestError("unsupported_grammar", format.param,
                       fmt::format("{}: {}", format.param, error.what()));
  }
  return masks;
}

std::vector<ToolDefinition> allowed_tools(const Conversation& conversation) {
  if (conversation.allowed_tools.empty()) return conversation.tools;
  std::vector<ToolDefinition> out;
  for (const ToolDefinition& tool : conversation.tools) {
    const auto& names = conversation.allowed_tools;
    if (std::find(names.begin(), names.end(), tool.name) != names.end()) out.push_back(tool);
  }
  return out;
}

AnswerConstraint::Options constraint_options(const ServedModel& model) {
  return {.think_end = model.markers.id(Marker::kThinkEnd).value_or(-1),
          .dsml = model.markers.id(Marker::kDsml).value_or(-1),
          .eos = model.limits.eos};
}

// Options of an answer that only a budget of thinking constrains.
AnswerConstraint::Options thinking_options(const ServedModel& model,
                                           const Conversation& conversation) {
  return {.forced = false,
          .thinking = true,
          .thinking_budget = conversation.thinking_budget,
          .think_end = model.markers.require(Marker::kThinkEnd)};
}

}  // namespace

void MaskBudget::mask(TokenMasks& masks, TokenMasks::State state, std::span<uint32_t> out) {
  const auto now = [] {
    timespec time{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return static_cast<uint64_t>(time.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(time.tv_nsec);
  };
  const uint64_t begin = now();
  steps_ += masks.mask(state, out);
  nanoseconds_ += now() - begin;
  const uint64_t count = ++masks_;
  if (steps_ > kStepsAtOnce + count * kStepsEach ||
      nanoseconds_ > kNanosecondsAtOnce + count * kNanosecondsEach) {
    fail(ErrorCode::kResource,
         "the grammar is too ambiguous: {} steps and {} ms for {} tokens, more than {} a token",
         steps_.load(), nanoseconds_ / 1'000'000, count, kStepsEach);
  }
}

void try_masks(TokenMasks& masks, size_t words) {
  constexpr int kTried = 24;
  MaskBudget budget;
  std::vector<uint32_t> mask(words);
  TokenMasks::State state = masks.start();
  for (int i = 0; i < kTried; ++i) {
    budget.mask(masks, state, mask);
    // The longest run of the grammar is the costly one: a token that does not end it.
    TokenMasks::State next = TokenMasks::kDead;
    for (size_t k = 0; k < 32 * words && next == TokenMasks::kDead; ++k) {
      const size_t token = (k + static_cast<size_t>(i) * 977) % (32 * words);
      if ((mask[token / 32] >> (token % 32) & 1) != 0)
        next = masks.advance(state, static_cast<int32_t>(token));
    }
    if (next == TokenMasks::kDead) return;
    state = next;
  }
}

AnswerConstraint::AnswerConstraint(std::shared_ptr<TokenMasks> masks,
                                   std::shared_ptr<const Tokenizer> tokenizer, Options options)
    : masks_(std::move(masks)), tokenizer_(std::move(tokenizer)), options_(std::move(options)) {
  start_ = options_.thinking ? kThinking : begin();
  if (masks_ == nullptr) return;
  TokenMasks::State state = masks_->start();
  if (!options_.forced) {
    state = masks_->advance_bytes(state, "\n\n<");
    if (state != TokenMasks::kDead) state = masks_->advance(state, options_.dsml);
  } else {
    state = masks_->advance_bytes(state, options_.begun);
    if (state == TokenMasks::kDead)
      refuse("messages", "the format does not allow how the answer begins");
  }
  in_grammar_ = of(state);
  if (!options_.thinking) start_ = begin();
}

TokenConstraint::State AnswerConstraint::advance(State state, int32_t token) {
  if (base(state) >= kGrammar)
    return of(masks_->advance(static_cast<TokenMasks::State>(state - kGrammar), token));
  const bool thinking = is_thinking(state);
  if (thinking && token == options_.think_end) return begin();
  const bool after_less = base(state) == kThinkingLess || state == kTextLess;
  if (!options_.forced && after_less && token == options_.dsml) return in_grammar_;
  const bool less = tokenizer_->token_bytes(token).ends_with('<') &&
                    !tokenizer_->token_bytes(token).ends_with("</");
  if (!thinking) return less ? kTextLess : kText;
  const State count = options_.thinking_budget > 0 ? state / kOneToken + 1 : 0;
  return count * kOneToken + (less ? kThinkingLess : kThinking);
}

void AnswerConstraint::mask(State state, std::span<uint32_t> out) {
  if (base(state) >= kGrammar)
    return budget_.mask(*masks_, static_cast<TokenMasks::State>(state - kGrammar), out);
  if (at_budget(state)) {
    std::fill(out.begin(), out.end(), 0);
    out[static_cast<size_t>(options_.think_end) / 32] = uint32_t{1} << (options_.think_end % 32);
    return;
  }
  std::fill(out.begin(), out.end(), ~uint32_t{0});
  const auto forbid = [&](int32_t token) {
    if (token >= 0) out[static_cast<size_t>(token) / 32] &= ~(uint32_t{1} << (token % 32));
  };
  for (const int32_t token : options_.eos) forbid(token);
  forbid(options_.dsml);
}

void AnswerConstraint::mask_ahead(State state, std::span<uint32_t> out) {
  if (base(state) < kGrammar) return mask(state, out);
  masks_->mask(static_cast<TokenMasks::State>(state - kGrammar), out);
}

std::shared_ptr<TokenConstraint> format_constraint(const ServedModel& model,
                                                   const ResponseFormat& format) {
  if (format.kind == ResponseFormat::Kind::kText) return nullptr;
  return std::make_shared<AnswerConstraint>(of_format(model, format), model.tokenizer,
                                            constraint_options(model));
}

std::shared_ptr<TokenConstraint> answer_constraint(const ServedModel& model,
                                                   const Conversation& conversation,
                                                   OutputStage stage, bool single_call) {
  const ResponseFormat& format = conversation.format;
  const bool has_format = format.kind != ResponseFormat::Kind::kText;
  const bool has_tools = !conversation.tools.empty(), forced_tools = forces_tools(conversation);
  const bool free_tools =
      has_tools && !forced_tools &&
      (model.tool_grammar != ToolGrammar::kOff || !conversation.allowed_tools.empty());
  const bool thinking = stage == OutputStage::kReason;
  if (!forced_tools && !has_format && !free_tools) {
    if (!thinking || conversation.thinking_budget == 0) return nullptr;
    return std::make_shared<AnswerConstraint>(nullptr, model.tokenizer,
                                              thinking_options(model, conversation));
  }
  const std::vector<ToolDefinition> tools = allowed_tools(conversation);
  const ToolGrammarOptions how =
      tool_options(model, conversation, stage == OutputStage::kBlock, single_call);
  AnswerConstraint::Options options = constraint_options(model);
  options.forced = forced_tools || has_format;
  options.thinking = thinking;
  options.thinking_budget = conversation.thinking_budget;
  if (conversation.continues && !options.thinking) options.begun = conversation.turns.back().text;
  std::shared_ptr<TokenMasks> masks;
  if (!has_tools || forced_tools || !has_format) {
    masks = has_tools ? compiled(model, "tools", key_of(tools, how),
                                 [&] { return tool_grammar(tools, how); })
                      : of_format(model, format);
  } else {  // the model chooses between a call and an answer in the format
    masks = compiled(model, format.param, key_of(format) + " or " + key_of(tools, how),
                     [&] { return either(grammar_of(format), tool_grammar(tools, how)); });
  }
  return std::make_shared<AnswerConstraint>(std::move(masks), model.tokenizer, std::move(options));
}

}  // namespace dsv4
