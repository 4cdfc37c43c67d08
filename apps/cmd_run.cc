// dsv4 run MODEL [-p TEXT | -f FILE]: continue a text, token by token on stdout.

#include <CLI/CLI.hpp>
#include <algorithm>
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
#include "dsv4/engine/device_model.h"
#include "dsv4/engine/engine.h"
#include "dsv4/text/stream_decoder.h"
#include "dsv4/text/tokenizer.h"

namespace dsv4::apps {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int64_t kDefaultNewTokens = 512;

struct RunOptions {
  std::string model, prompt, file, device = "cpu", stats;
  std::optional<int64_t> max_new_tokens;
  bool deterministic = false;
  std::optional<float> temperature, top_p;
  std::optional<uint64_t> seed;
  Numerics numerics = Numerics::kOfficial;
};

// Prints pieces of valid UTF-8 as tokens arrive.
class Printer : public TokenSink {
 public:
  Printer(const Tokenizer& tokenizer, Progress& progress)
      : decoder_(tokenizer), progress_(progress) {}

  void on_token(RequestId, int32_t token, float) override {
    if (tokens_++ == 0) {
      first_ = Clock::now();
      progress_.finish();  // the bar must be cleared before text is printed
    }
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
  Progress& progress_;
  int64_t tokens_ = 0;
  Clock::time_point first_;
  Finish finish_ = Finish::kLength;
};

// The text after the beginning-of-sentence token, which the tokenizer itself does not add
// (docs/spec/dsv4.md 11.1).
std::vector<int32_t> encode_prompt(const Tokenizer& tokenizer, int32_t bos,
                                   const std::string& text) {
  std::vector<int32_t> ids = tokenizer.encode(text);
  if (bos >= 0 && (ids.empty() || ids.front() != bos)) ids.insert(ids.begin(), bos);
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

GenerateParams generate_params(const RunOptions& options, const std::string& folder,
                               const ModelConfig& config, int64_t prompt_tokens) {
  GenerateParams params{.sampling = load_sampling_defaults(folder), .stop = config.eos};
  if (options.temperature) params.sampling.temperature = *options.temperature;
  if (options.top_p) params.sampling.top_p = *options.top_p;
  params.sampling.seed = options.seed ? *options.seed : std::random_device{}();
  const int64_t room = std::max<int64_t>(config.max_positions - prompt_tokens, 1);
  params.max_new_tokens = options.max_new_tokens.value_or(std::min(kDefaultNewTokens, room));
  return params;
}

void run(const RunOptions& options) {
  const auto begin = Clock::now();
  const std::string folder = find_model(options.model);
  const std::string text = options.file.empty() ? options.prompt : read_text_file(options.file);
  const Tokenizer tokenizer = Tokenizer::load(folder + "/tokenizer.json");
  std::shared_ptr<Device> device = open_device(options.device);
  Model model = Model::load(folder);
  check_vocabulary(tokenizer, model);
  const std::vector<int32_t> prompt = encode_prompt(tokenizer, model.config().bos, text);
  const auto prompt_tokens = static_cast<int64_t>(prompt.size());
  const GenerateParams params = generate_params(options, folder, model.config(), prompt_tokens);

  // The cache covers the requested tokens, but no more than the model supports.
  const int64_t cache_tokens =
      prompt_tokens + std::min(params.max_new_tokens,
                               std::max<int64_t>(model.config().max_positions - prompt_tokens, 1));
  const EngineOptions engine_options{.numerics = options.numerics,
                                     .deterministic = options.deterministic,
                                     .max_tokens = cache_tokens};
  place_model(model, std::move(device), cache_bytes(model, engine_options));
  Engine engine(model, engine_options);
  Progress progress("processing the prompt", prompt_tokens);
  Printer printer(tokenizer, progress);
  engine.submit(prompt, params, printer);
  while (engine.step()) {
    if (printer.tokens() == 0) progress.update(engine.stats().prefill_tokens);
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
  command
      ->add_option("-n,--max-tokens", options->max_new_tokens,
                   "maximum number of tokens to generate")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 30))
      ->option_text(fmt::format("N ({})", kDefaultNewTokens));
  command
      ->add_option("--temp", options->temperature,
                   "temperature; 0 is greedy (default: the model's)")
      ->check(number_in(0.0, 100.0));
  command->add_option("--top-p", options->top_p, "nucleus mass (default: the model's)")
      ->check(number_in(1e-6, 1.0));
  command->add_option("--seed", options->seed, "random seed (default: a new one each run)");
  add_numerics(*command, options->numerics);
  command->add_flag("--deterministic", options->deterministic,
                    "use only implementations whose bits do not depend on the batch");
  add_device(*command, options->device);
  command->add_option("--stats", options->stats, "print timings on stderr")
      ->check(CLI::IsMember({"json"}));
  command->callback([options, &action] { action = [options] { run(*options); }; });
}

}  // namespace dsv4::apps
