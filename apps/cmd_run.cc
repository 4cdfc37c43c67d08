// dsv4 run MODEL [-p TEXT | -f FILE ... | --jsonl FILE]: continue texts, token by token on stdout.
// With --chat they are messages, and the model answers.

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <random>

#include "apps/commands.h"
#include "apps/common.h"
#include "apps/expert_options.h"
#include "apps/expert_record.h"
#include "apps/expert_report.h"
#include "apps/generation.h"
#include "apps/run_answers.h"
#include "apps/run_prompts.h"
#include "apps/sampling_options.h"
#include "apps/speculate_options.h"
#include "apps/threads.h"
#include "dsv4/base/error.h"
#include "dsv4/base/mapped_file.h"
#include "dsv4/chat/model_folder.h"
#include "dsv4/chat/render.h"
#include "dsv4/engine/device_model.h"
#include "dsv4/engine/engine.h"
#include "dsv4/engine/fingerprint.h"
#include "dsv4/text/tokenizer.h"

namespace dsv4::apps {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int64_t kDefaultNewTokens = 512;
constexpr int kDefaultParallel = 8;

struct RunOptions {
  std::string model, device = "auto", stats = "text";
  ExpertsPlacement placement = ExpertsPlacement::kSliced;
  PromptSources prompts;
  AnswerOptions answers;
  int64_t max_new_tokens = kDefaultNewTokens;  // -1: until the model or the context ends it
  std::optional<int64_t> context;
  int parallel = kDefaultParallel;
  std::string prompt_cache;  // file; empty: none
  ExpertRecordOptions record;
  ExpertOptions experts;
  SpeculateOptions speculate;
  bool chat = false;
  bool deterministic = false, ignore_eos = false, check_numbers = false, quiet = false;
  std::vector<ImplChoice> choices;
  SamplingOptions sampling;
  Numerics numerics = Numerics::kOfficial;
};

// The text after the beginning-of-sentence token, which the tokenizer itself does not add
// (docs/spec/dsv4.md 11.1).
std::vector<int32_t> encode_prompt(const Tokenizer& tokenizer, int32_t bos,
                                   const std::string& text) {
  std::vector<int32_t> ids = tokenizer.encode(text);
  if (bos >= 0 && (ids.empty() || ids.front() != bos)) ids.insert(ids.begin(), bos);
  return ids;
}

// The prompt of a conversation that begins with this message, without thinking: whatever stands in
// the text, it is text.
class ChatPrompts {
 public:
  ChatPrompts(const Tokenizer& tokenizer, const std::string& folder)
      : tokenizer_(tokenizer),
        markers_(tokenizer),
        options_(chat_options_of_folder(folder, "auto", "off")) {}

  std::vector<int32_t> encode(const std::string& text) const {
    JsonValue body = JsonValue::object(), messages = JsonValue::array(),
              message = JsonValue::object();
    message.add("role", JsonValue::of_string("user"));
    message.add("content", JsonValue::of_string(text));
    messages.items.push_back(std::move(message));
    body.add("messages", std::move(messages));
    return dsv4::encode(render(read_chat_request(body, options_)), markers_,
                        tokenizer_.text_encoder());
  }

 private:
  const Tokenizer& tokenizer_;
  const MarkerIds markers_;
  const ChatOptions options_;
};

double seconds(Clock::time_point from, Clock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

struct Timings {
  int64_t prompt_tokens, cached_tokens, generated_tokens;
  double first_token_seconds, prefill_rate, decode_rate;
  std::string speculation;  // empty: none
  DraftCounts drafts;
};

Timings timings_of(const EngineStats& stats, const Answers& answers, Clock::time_point begin) {
  const auto rate = [](int64_t tokens, double time) {
    return time > 0 ? static_cast<double>(tokens) / time : 0.0;
  };
  return {.prompt_tokens = stats.prefill_tokens,
          .cached_tokens = stats.cached_tokens,
          .generated_tokens = answers.tokens(),
          .first_token_seconds = answers.tokens() > 0 ? seconds(begin, answers.first_token()) : 0.0,
          .prefill_rate = rate(stats.prefill_tokens, stats.prefill_seconds),
          .decode_rate = rate(stats.decode_tokens, stats.decode_seconds),
          .speculation = speculation_text(stats.speculation),
          .drafts = stats.speculation.counts};
}

// {"lookup": {"drafted": 40, "accepted": 31}}, the sources that had drafts
nlohmann::json drafts_json(const DraftCounts& counts) {
  nlohmann::json report = nlohmann::json::object();
  for (size_t i = 0; i < counts.drafted.size(); ++i)
    if (counts.drafted[i] > 0)
      report[name(static_cast<DraftSource>(i))] = {{"drafted", counts.drafted[i]},
                                                   {"accepted", counts.accepted[i]}};
  return report;
}

// One line, on stderr like everything that is not the answer.
void print_stats(const RunOptions& options, const Timings& t, const Answers& answers,
                 const Model& model) {
  if (options.stats == "none" || options.quiet) return;
  const Answer& first = answers.all().front();
  const bool one = answers.all().size() == 1;
  if (options.stats == "json") {
    nlohmann::json report = {{"prompt_tokens", t.prompt_tokens},
                             {"drafts", drafts_json(t.drafts)},
                             {"cached_tokens", t.cached_tokens},
                             {"generated_tokens", t.generated_tokens},
                             {"first_token_seconds", t.first_token_seconds},
                             {"prefill_tokens_per_second", t.prefill_rate},
                             {"decode_tokens_per_second", t.decode_rate},
                             {"prompts", answers.all().size()},
                             {"finish", first.why},
                             {"seed", first.seed}};
    if (nlohmann::json experts = expert_report(model); !experts.is_null())
      report["experts_in_host_memory"] = std::move(experts);
    fmt::print(stderr, "{}\n", report.dump());
    return;
  }
  std::string end = fmt::format("{} answers", answers.all().size());
  if (one && first.why == "length") {
    end = fmt::format("cut after {} tokens (-n, --context)", first.tokens);
  } else if (one) {
    end = first.why == "stop" ? "ended by the model" : "ended by a stop text";
  }
  const std::string experts = expert_text(model);
  fmt::print(stderr,
             "dsv4: {}; {} prompt tokens at {:.0f} tokens/s, first token after {:.2f} s, {} "
             "generated at {:.0f} tokens/s{}{}{}{}\n",
             end, t.prompt_tokens, t.prefill_rate, t.first_token_seconds, t.generated_tokens,
             t.decode_rate, t.speculation.empty() ? "" : "; ", t.speculation,
             experts.empty() ? "" : "; ", experts);
}

struct Submission {
  RunPrompt prompt;
  std::vector<int32_t> ids;
  GenerateParams params;
};

// Positions that a sequence may take: --context, but no more than the model supports.
int64_t context_of(const RunOptions& options, const ModelConfig& config) {
  return std::min(options.context.value_or(config.max_positions), config.max_positions);
}

Submission submission_of(const RunOptions& options, RunPrompt prompt, size_t index, uint64_t seed,
                         const SamplingParams& defaults, std::vector<int32_t> ids,
                         const ModelConfig& config) {
  Submission one{.params = {.sampling = options.sampling.applied_to(defaults),
                            .logit_bias = options.sampling.logit_bias}};
  one.ids = std::move(ids);
  const auto length = static_cast<int64_t>(one.ids.size());
  const int64_t context = context_of(options, config), room = context - length;
  if (room < 1)
    fail(ErrorCode::kBadInput, "{}: {} tokens leave no room for an answer in a context of {}",
         prompt.name, length, context);
  SamplingParams& sampling = one.params.sampling;
  sampling.top_logprobs = options.answers.logprobs.value_or(0);
  sampling.seed = prompt.seed.value_or(seed + index);
  if (!options.ignore_eos) one.params.stop = config.eos;
  const int64_t wanted = prompt.max_new_tokens.value_or(options.max_new_tokens);
  // The default is cut to the room; a number that was asked for must fit (Engine::submit).
  const bool asked = prompt.max_new_tokens || options.max_new_tokens != kDefaultNewTokens;
  one.params.max_new_tokens = wanted < 0 ? room : asked ? wanted : std::min(wanted, room);
  if (one.params.max_new_tokens > room)
    fail(ErrorCode::kBadInput,
         "{}: prompt of {} tokens and answer of up to {} exceed the {} positions of the context",
         prompt.name, length, one.params.max_new_tokens, context);
  one.prompt = std::move(prompt);
  return one;
}

std::vector<Submission> submissions_of(const RunOptions& options, const std::string& folder,
                                       const Tokenizer& tokenizer, const ModelConfig& config) {
  const SamplingParams defaults = load_sampling_defaults(folder);
  const uint64_t seed = options.sampling.seed ? *options.sampling.seed : std::random_device{}();
  std::optional<ChatPrompts> chat;
  if (options.chat) chat.emplace(tokenizer, folder);
  std::vector<Submission> all;
  for (RunPrompt& prompt : read_prompts(options.prompts)) {
    const size_t index = all.size();
    std::vector<int32_t> ids =
        chat ? chat->encode(prompt.text) : encode_prompt(tokenizer, config.bos, prompt.text);
    all.push_back(
        submission_of(options, std::move(prompt), index, seed, defaults, std::move(ids), config));
  }
  return all;
}

// The cache covers the longest request, once for each that runs at a time.
EngineOptions engine_options(const RunOptions& options, const std::vector<Submission>& all) {
  EngineOptions engine{.numerics = options.numerics,
                       .deterministic = options.deterministic,
                       .choices = options.choices,
                       .max_tokens = 1,
                       .check_numbers = options.check_numbers};
  for (const Submission& one : all)
    engine.max_tokens = std::max(engine.max_tokens,
                                 static_cast<int64_t>(one.ids.size()) + one.params.max_new_tokens);
  engine.max_sequences =
      static_cast<int>(std::min<size_t>(all.size(), static_cast<size_t>(options.parallel)));
  if (!options.prompt_cache.empty()) engine.prefix_checkpoints = 2;
  return engine;
}

// Host memory for the file's conversation and for what this run adds to it.
void add_prompt_cache(const RunOptions& options, const std::string& folder, const Model& model,
                      size_t num_prompts, EngineOptions& engine) {
  if (options.prompt_cache.empty()) return;
  if (num_prompts > 1)
    fail(ErrorCode::kBadInput, "--prompt-cache is for one prompt, and there are {}", num_prompts);
  constexpr int64_t kAtLeast = int64_t{16} << 20;
  engine.tiers.ram_bytes = std::max(kAtLeast, 3 * cache_bytes(model, engine));
  engine.model_identity = model_identity(folder);
}

void run(const RunOptions& options) {
  const auto begin = Clock::now();
  const std::string folder = find_model(options.model);
  const Tokenizer tokenizer = load_tokenizer(folder);
  check_expert_options(options.experts, options.device, options.placement);
  const Devices devices = open_devices(options.device);
  Model model =
      load_with_drafter(options.speculate, folder, options.device, devices, options.placement);
  check_vocabulary(tokenizer, model);
  std::vector<Submission> all = submissions_of(options, folder, tokenizer, model.config());
  EngineOptions how = engine_options(options, all);
  apply_speculation(options.speculate, model, options.device, how);
  add_prompt_cache(options, folder, model, all.size(), how);
  const ExpertRecord record(options.record, options.device, options.experts.wanted(),
                            model.config());
  how.expert_trace = record.trace();
  place_model(
      model, devices, cache_bytes(model, how), step_context(how),
      expert_memory(options.experts, model.config(), cache_limits(how), how.tiers.ram_bytes));
  record.begin(model);
  Engine engine(model, how);
  if (!options.prompt_cache.empty() && is_present(options.prompt_cache))
    engine.load_prefix(options.prompt_cache);
  std::vector<int32_t> text = all.front().ids;

  int64_t prompt_tokens = 0;
  for (const Submission& one : all) prompt_tokens += static_cast<int64_t>(one.ids.size());
  Progress progress("processing the prompt", prompt_tokens);
  AnswerOptions shown = options.answers;
  shown.headers = all.size() > 1;
  shown.json = shown.json || shown.logprobs.has_value() || !options.prompts.json_lines.empty();
  // The bar must be cleared before text is printed.
  Answers answers(engine, tokenizer, shown, [&] { progress.finish(); });
  for (Submission& one : all) {
    const RequestId id = engine.submit(one.ids, one.params, answers);
    answers.add(id, std::move(one.prompt), static_cast<int64_t>(one.ids.size()),
                one.params.sampling.seed);
  }
  while (engine.step()) progress.update(engine.stats().prefill_tokens);
  const std::vector<int32_t>& answer = answers.all().front().ids;
  text.insert(text.end(), answer.begin(), answer.end());
  if (!options.prompt_cache.empty()) engine.save_prefix(options.prompt_cache, text);
  record.finish(model);
  print_stats(options, timings_of(engine.stats(), answers, begin), answers, model);
}

void add_prompt_options(CLI::App& command, RunOptions& options) {
  PromptSources& prompts = options.prompts;
  // Not bound to the optional: CLI11 would take '' for no value.
  CLI::Option* text = command.add_option_function<std::string>(
      "-p,--prompt", [&prompts](const std::string& given) { prompts.text = given; },
      "text to continue");
  CLI::Option* file =
      command
          .add_option("-f,--file", prompts.files,
                      "file with a text to continue, - for standard input; may be repeated")
          ->excludes(text)
          ->take_all()
          ->allow_extra_args(false);
  command
      .add_option("--jsonl", prompts.json_lines,
                  "file with a prompt per line, a JSON string or {\"prompt\": ...}; answers with "
                  "a JSON object per line")
      ->excludes(text)
      ->excludes(file);
  command.add_flag("--chat", options.chat,
                   "the texts are messages that the model answers, without thinking; `dsv4 chat` "
                   "is a whole conversation");
  command.add_option("--parallel", options.parallel, "prompts that run at a time")
      ->check(integer_in(1, 1 << 16))
      ->capture_default_str();
}

CLI::Validator token_limit() {
  return CLI::Validator(
      [](std::string& text) -> std::string {
        if (text == "-1") return "";
        const std::string error = integer_in(1, int64_t{1} << 30)(text);
        return error.empty() ? "" : error + ", or -1 for no limit";
      },
      "");
}

void add_draw_options(CLI::App& command, RunOptions& options) {
  command
      .add_option("-n,--max-tokens", options.max_new_tokens,
                  "maximum number of tokens to generate; -1: until the model or the context ends")
      ->check(token_limit())
      ->option_text(fmt::format("N ({})", kDefaultNewTokens));
  add_sampling_options(command, options.sampling);
}

void add_end_options(CLI::App& command, RunOptions& options) {
  command.add_option("--stop", options.answers.stops, "text that ends the answer; may be repeated")
      ->take_all()
      ->allow_extra_args(false);
  command.add_flag("--ignore-eos", options.ignore_eos,
                   "continue where the model would end the text");
  command.add_option("--context", options.context, "tokens of prompt and answer at most")
      ->check(integer_in(2, int64_t{1} << 30))
      ->option_text("N (the model's positions)");
}

void add_cache_options(CLI::App& command, RunOptions& options) {
  command
      .add_option(
          "--prompt-cache", options.prompt_cache,
          "file that keeps what was computed of the text: a longer text that begins with it "
          "computes the rest only")
      ->option_text("FILE");
}

void add_output_options(CLI::App& command, RunOptions& options) {
  command.add_flag("--echo", options.answers.echo, "print the prompt before the answer");
  command.add_flag("--special", options.answers.show_special, "print special tokens as well");
  command.add_flag("--json", options.answers.json, "print a JSON object instead of text");
  command
      .add_option("--logprobs", options.answers.logprobs,
                  "as --json, with ids and log-probabilities of the tokens, and in each place of "
                  "the N likeliest")
      ->expected(0, 1)
      ->default_str("0")
      ->check(integer_in(0, kMaxTopLogprobs))
      ->option_text("[N]");
  command.add_option("--stats", options.stats, "timings and the reason of the end, on stderr")
      ->check(CLI::IsMember({"text", "json", "none"}))
      ->option_text("text|json|none");
  command.add_flag("-q,--quiet", options.quiet, "as --stats none");
}

}  // namespace

void add_run(CLI::App& app, Action& action) {
  CLI::App* command = app.add_subcommand("run", "Continue a text");
  command->footer(
      "Example: dsv4 run demo -p 'Long ago,' -n 80 --seed 7\n"
      "         echo 'Long ago,' | dsv4 run demo --stop '\n'");
  auto options = std::make_shared<RunOptions>();
  command->add_option("model", options->model, "model folder, ORG/NAME, or demo")->required();
  add_prompt_options(*command, *options);
  add_draw_options(*command, *options);
  add_end_options(*command, *options);
  add_cache_options(*command, *options);
  add_output_options(*command, *options);
  add_numerics(*command, options->numerics);
  add_deterministic(*command, options->deterministic);
  add_speculate_options(*command, options->speculate);
  add_choices(*command, options->choices);
  add_device(*command, options->device);
  add_placement(*command, options->placement);
  add_threads(*command);
  add_check_numbers(*command, options->check_numbers);
  add_expert_options(*command, options->experts);
  add_expert_record(*command, options->record);
  command->callback([options, &action] { action = [options] { run(*options); }; });
}

}  // namespace dsv4::apps
