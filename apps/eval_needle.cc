// dsv4 eval needle MODEL: recall of facts by distance. Greedy answers, whole prompts.

#include <CLI/CLI.hpp>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>

#include "apps/commands.h"
#include "apps/common.h"
#include "apps/eval_input.h"
#include "apps/rank_process.h"
#include "dsv4/base/error.h"
#include "dsv4/base/mapped_file.h"
#include "dsv4/base/rng.h"
#include "dsv4/engine/device_model.h"
#include "dsv4/engine/engine.h"
#include "dsv4/quality/needle.h"

namespace dsv4::apps {
namespace {

// The model may emit a token or two of white space before the answer.
constexpr int64_t kSpareTokens = 4;
constexpr size_t kMaxTemplateBytes = size_t{16} << 20;
constexpr int64_t kMaxPromptTokens = int64_t{1} << 27;  // of 4 bytes, in all prompts

struct NeedleOptions : EvalMode {
  std::string model, form;
  std::vector<int64_t> distances = {64, 256, 1000, 3000};
  int64_t prompts = 20;
  uint64_t seed = 0;
  bool json = false;
};

struct Question {
  int64_t distance;
  NeedlePrompt prompt;
};

class NeedleAnswers : public TokenSink {
 public:
  void on_token(RequestId id, const Sampled& token) override { tokens_[id].push_back(token.id); }
  void on_finish(RequestId, Finish) override {}
  const std::vector<int32_t>& of(RequestId id) { return tokens_[id]; }

 private:
  std::map<RequestId, std::vector<int32_t>> tokens_;
};

struct Score {
  int64_t right = 0, total = 0;
};

// --template, the one in the model's folder, or the built-in one; `source` is set to its name.
NeedleTemplate load_template(const NeedleOptions& options, const std::string& folder,
                             std::string& source) {
  const bool own = options.form.empty();
  const std::string file = own ? folder + "/needle.json" : options.form;
  source = own ? options.model + "/needle.json" : options.form;
  if (own && !is_present(file)) {
    source = "built-in";
    return default_needle_template();
  }
  return parse_needle_template(read_text_file(file, kMaxTemplateBytes), source);
}

// Before any prompt is made: one of a billion tokens would take all memory, and so would a million
// of a thousand.
void check_distances(const NeedleOptions& options, const Model& model) {
  const int64_t positions = model.config().max_positions;
  int64_t total = 0;
  for (const int64_t distance : options.distances) {
    if (distance >= positions)
      fail(ErrorCode::kBadInput, "a distance of {} tokens exceeds the model's {} positions",
           distance, positions);
    total += distance * options.prompts;
    if (total > kMaxPromptTokens)
      fail(ErrorCode::kBadInput, "--prompts {}: more than {} tokens in all prompts; ask for fewer",
           options.prompts, kMaxPromptTokens);
  }
}

std::vector<Question> make_questions(const NeedleOptions& options, const NeedleTemplate& form,
                                     const Tokenizer& tokenizer, int32_t bos) {
  std::vector<Question> questions;
  for (const int64_t distance : options.distances) {
    const uint64_t seed = random_bits(options.seed, static_cast<uint64_t>(distance));
    for (int64_t i = 0; i < options.prompts; ++i) {
      questions.push_back({distance, make_needle(form, tokenizer, bos, distance,
                                                 random_bits(seed, static_cast<uint64_t>(i)))});
    }
  }
  return questions;
}

// Options for the longest question; throws kBadInput when it exceeds the model's positions.
EngineOptions options_for(const Model& model, const EvalMode& mode,
                          const std::vector<Question>& questions) {
  int64_t longest = 0;
  for (const auto& [distance, prompt] : questions) {
    longest = std::max(
        longest, static_cast<int64_t>(prompt.ids.size()) + prompt.answer_tokens + kSpareTokens);
  }
  if (longest > model.config().max_positions) {
    fail(ErrorCode::kBadInput, "prompts of up to {} tokens exceed the model's {} positions",
         longest, model.config().max_positions);
  }
  return {.numerics = mode.numerics,
          .deterministic = mode.deterministic,
          .choices = mode.choices,
          .max_tokens = longest,
          .check_numbers = mode.check_numbers};
}

std::map<int64_t, Score> ask(const Model& model, const Tokenizer& tokenizer,
                             const EngineOptions& options, const std::vector<Question>& questions) {
  int64_t total = 0;
  for (const auto& [distance, prompt] : questions) total += static_cast<int64_t>(prompt.ids.size());
  Engine engine(model, options);
  NeedleAnswers answers;
  Progress progress("answering", total);
  std::map<int64_t, Score> scores;
  for (const auto& [distance, prompt] : questions) {
    const RequestId id = engine.submit(prompt.ids,
                                       {.sampling = {.temperature = 0},
                                        .max_new_tokens = prompt.answer_tokens + kSpareTokens,
                                        .stop = model.config().eos},
                                       answers);
    while (engine.step()) progress.update(engine.stats().prefill_tokens);
    Score& score = scores[distance];
    score.right += is_right(tokenizer.decode(answers.of(id)), prompt.answer) ? 1 : 0;
    ++score.total;
  }
  return scores;
}

void eval_needle(const NeedleOptions& options) {
  const std::string folder = find_model(options.model);
  std::string source;
  const NeedleTemplate form = load_template(options, folder, source);
  const Tokenizer tokenizer = load_tokenizer(folder);
  check_expert_options(options.experts, options.device, options.placement);
  const Devices devices = open_devices(options.device);
  Model model = load_ranks(ModelSpec::load(folder, options.placement), options.device, devices);
  check_vocabulary(tokenizer, model);
  check_distances(options, model);
  const std::vector<Question> questions =
      make_questions(options, form, tokenizer, model.config().bos);
  const EngineOptions engine_options = options_for(model, options, questions);
  place_model(model, devices, cache_bytes(model, engine_options), step_context(engine_options),
              expert_memory(options.experts, model.config(), cache_limits(engine_options)));
  const std::map<int64_t, Score> scores = ask(model, tokenizer, engine_options, questions);

  nlohmann::json rows = nlohmann::json::array();
  for (const auto& [distance, score] : scores)
    rows.push_back({{"distance", distance}, {"right", score.right}, {"total", score.total}});
  if (options.json) {
    return print_json({{"recall", rows},
                       {"template", source},
                       {"seed", options.seed},
                       {"numerics", name(options.numerics)}});
  }
  fmt::print("distance   right\n");
  for (const auto& [distance, score] : scores) {
    fmt::print("{:8}   {} of {}  ({:.1f} %)\n", distance, score.right, score.total,
               100.0 * static_cast<double>(score.right) / static_cast<double>(score.total));
  }
}

}  // namespace

void add_eval_needle(CLI::App& eval, Action& action) {
  CLI::App* command = eval.add_subcommand("needle", "Recall of a fact by distance");
  command->footer("Example: dsv4 eval needle demo --distances 1000,3000 --prompts 100");
  auto options = std::make_shared<NeedleOptions>();
  command->add_option("model", options->model, "model folder, ORG/NAME, or demo")->required();
  command->add_option("--distances", options->distances, "tokens between a fact and its answer")
      ->delimiter(',')
      ->check(integer_in(1, 1 << 30))
      ->option_text("N,N,... (64,256,1000,3000)");
  command->add_option("--prompts", options->prompts, "prompts per distance")
      ->check(integer_in(1, 1 << 20))
      ->capture_default_str();
  command->add_option("--seed", options->seed, "seed of the prompts")
      ->check(seed_number())
      ->capture_default_str();
  command->add_option("--template", options->form,
                      "template of the prompts (default: the model's needle.json, or built in)");
  add_eval_mode(*command, *options);
  command->add_flag("--json", options->json, "print a report on stdout");
  command->callback([options, &action] { action = [options] { eval_needle(*options); }; });
}

}  // namespace dsv4::apps
