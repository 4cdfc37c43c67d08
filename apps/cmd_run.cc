// dsv4 run MODEL [-p TEXT | -f FILE]: continue a text, token by token on stdout.

#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <random>

#include "apps/commands.h"
#include "apps/common.h"
#include "apps/generation.h"
#include "dsv4/base/error.h"
#include "dsv4/base/mapped_file.h"
#include "dsv4/engine/engine.h"
#include "dsv4/text/stream_decoder.h"
#include "dsv4/text/tokenizer.h"

namespace dsv4::apps {
namespace {

using Clock = std::chrono::steady_clock;

struct RunOptions {
  std::string model, prompt, file, device = "cpu", stats;
  int64_t max_new_tokens = 512;
  std::optional<float> temperature, top_p;
  std::optional<uint64_t> seed;
  Numerics numerics = Numerics::kOfficial;
};

// Prints pieces of valid UTF-8 as tokens come.
class Printer : public TokenSink {
 public:
  explicit Printer(const Tokenizer& tokenizer) : decoder_(tokenizer) {}

  void on_token(RequestId, int32_t token, float) override {
    if (tokens_++ == 0) first_ = Clock::now();
    print(decoder_.push(token));
  }
  void on_finish(RequestId, Finish why) override {
    print(decoder_.finish());
    print("\n");
    finish_ = why;
  }
  int64_t tokens() const { return tokens_; }
  Clock::time_point first() const { return first_; }
  Finish finish() const { return finish_; }

 private:
  void print(const std::string& piece) {
    const bool written = std::fwrite(piece.data(), 1, piece.size(), stdout) == piece.size() &&
                         std::fflush(stdout) == 0;
    if (!written) fail(ErrorCode::kIo, "cannot write to standard output");
  }

  StreamDecoder decoder_;
  int64_t tokens_ = 0;
  Clock::time_point first_;
  Finish finish_ = Finish::kLength;
};

// The text behind the beginning-of-sentence token, which the tokenizer itself does not add
// (spec 11.1).
std::vector<int32_t> encode_prompt(const Tokenizer& tokenizer, int32_t bos,
                                   const std::string& text) {
  std::vector<int32_t> ids = tokenizer.encode(text);
  if (ids.empty() || ids.front() != bos) ids.insert(ids.begin(), bos);
  return ids;
}

double seconds(Clock::time_point from, Clock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

void print_stats(const EngineStats& stats, const Printer& printer, Clock::time_point begin,
                 uint64_t seed) {
  const auto rate = [](int64_t tokens, double time) {
    return time > 0 ? static_cast<double>(tokens) / time : 0.0;
  };
  const nlohmann::json report = {
      {"prompt_tokens", stats.prefill_tokens},
      {"generated_tokens", printer.tokens()},
      {"first_token_seconds", printer.tokens() > 0 ? seconds(begin, printer.first()) : 0.0},
      {"prefill_tokens_per_second", rate(stats.prefill_tokens, stats.prefill_seconds)},
      {"decode_tokens_per_second", rate(stats.decode_tokens, stats.decode_seconds)},
      {"finish", name(printer.finish())},
      {"seed", seed}};
  fmt::print(stderr, "{}\n", report.dump());
}

void run(const RunOptions& options) {
  const auto begin = Clock::now();
  check_device(options.device);
  const std::string folder = find_model(options.model);
  const std::string text = options.file.empty() ? options.prompt : read_text_file(options.file);
  const Tokenizer tokenizer = Tokenizer::load(folder + "/tokenizer.json");
  const Model model = Model::load(folder);
  const std::vector<int32_t> prompt = encode_prompt(tokenizer, model.config().bos, text);

  GenerateParams params{.sampling = load_sampling_defaults(folder),
                        .max_new_tokens = options.max_new_tokens,
                        .stop = model.config().eos};
  if (options.temperature) params.sampling.temperature = *options.temperature;
  if (options.top_p) params.sampling.top_p = *options.top_p;
  params.sampling.seed = options.seed ? *options.seed : std::random_device{}();

  const auto prompt_tokens = static_cast<int64_t>(prompt.size());
  if (prompt_tokens + options.max_new_tokens > model.config().max_positions) {
    fail(ErrorCode::kBadInput, "prompt of {} tokens and -n {} exceed the model's {} positions",
         prompt_tokens, options.max_new_tokens, model.config().max_positions);
  }
  Engine engine(
      model, {.numerics = options.numerics, .max_tokens = prompt_tokens + options.max_new_tokens});
  Printer printer(tokenizer);
  engine.submit(prompt, params, printer);
  {
    Progress progress("reading the prompt", prompt_tokens);
    while (engine.stats().prefill_tokens < prompt_tokens && engine.step()) {
      progress.update(engine.stats().prefill_tokens);
    }
  }
  while (engine.step()) {
  }
  if (options.stats == "json") print_stats(engine.stats(), printer, begin, params.sampling.seed);
}

}  // namespace

void add_run(CLI::App& app, Action& action) {
  CLI::App* command = app.add_subcommand("run", "Continue a text");
  command->footer("Example: dsv4 run demo -p 'Once upon a time' -n 200 --seed 7");
  auto options = std::make_shared<RunOptions>();
  command->add_option("model", options->model, "model folder, or demo")->required();
  CLI::Option* prompt = command->add_option("-p,--prompt", options->prompt, "text to continue");
  command->add_option("-f,--file", options->file, "file with the text to continue")
      ->excludes(prompt);
  command->add_option("-n,--max-tokens", options->max_new_tokens, "most tokens to write")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 30))
      ->capture_default_str();
  command
      ->add_option("--temp", options->temperature,
                   "temperature; 0 is greedy (default: the model's)")
      ->check(CLI::Range(0.0, 100.0));
  command->add_option("--top-p", options->top_p, "nucleus mass (default: the model's)")
      ->check(CLI::Range(1e-6, 1.0));
  command->add_option("--seed", options->seed, "random seed (default: a new one each run)");
  add_numerics(*command, options->numerics);
  add_device(*command, options->device);
  command->add_option("--stats", options->stats, "print speeds on stderr")
      ->check(CLI::IsMember({"json"}));
  command->callback([options, &action] { action = [options] { run(*options); }; });
}

}  // namespace dsv4::apps
