// dsv4 eval logits MODEL --ids 1,2,3|@file -o OUT.safetensors, and the table of eval commands.
//
// Writes `logits` F32 [T, V] and `ids` I32 [T].

#include <CLI/CLI.hpp>
#include <cstring>
#include <memory>
#include <nlohmann/json.hpp>

#include "apps/commands.h"
#include "apps/common.h"
#include "apps/eval_input.h"
#include "apps/threads.h"
#include "dsv4/engine/score.h"
#include "dsv4/loader/safetensors.h"

namespace dsv4::apps {
namespace {

struct LogitsOptions : EvalMode {
  std::string model, ids, out;
  int64_t chunk = 512;
  bool json = false;
};

void eval_logits(const LogitsOptions& options) {
  check_out(options.out);
  const std::vector<int32_t> ids = parse_ids(options.ids);
  const Model model = load_eval_model(options, options.model, std::ssize(ids), options.chunk);
  const auto total = static_cast<int64_t>(ids.size()), vocab = model.config().vocab_size;
  const Buffer logits(DType::kF32, {total, vocab}), stored_ids(DType::kI32, {total});
  std::copy(ids.begin(), ids.end(), stored_ids.as<int32_t>());

  const auto begin = std::chrono::steady_clock::now();
  Progress progress("scoring", total);
  const EvalContext context(options, model);
  score(model, *context, ids, options.chunk, [&](int64_t first, const ConstTensorView& chunk) {
    std::memcpy(logits.view().row<float>(first), chunk.data, static_cast<size_t>(chunk.bytes()));
    progress.update(first + chunk.dim(0));
  });
  const std::chrono::duration<double> spent = std::chrono::steady_clock::now() - begin;
  write_safetensors(options.out, {{"logits", logits}, {"ids", stored_ids}},
                    {{"numerics", name(options.numerics)}});
  if (!options.json) return;
  print_json({{"tokens", total},
              {"vocab", vocab},
              {"chunk", options.chunk},
              {"out", options.out},
              {"seconds", spent.count()},
              {"numerics", name(options.numerics)}});
}

}  // namespace

void add_eval(CLI::App& app, Action& action) {
  CLI::App* eval = app.add_subcommand("eval", "Measure a model");
  eval->require_subcommand(1);
  CLI::App* logits = eval->add_subcommand("logits", "Write the logits of every position");
  logits->footer(
      "Example: dsv4 eval logits demo --ids 0,17,42 -o logits.safetensors --numerics exact");
  auto options = std::make_shared<LogitsOptions>();
  logits->add_option("model", options->model, "model folder, ORG/NAME, or demo")->required();
  logits->add_option("--ids", options->ids, "token ids: 1,2,3, @file or @-")->required();
  logits->add_option("-o,--out", options->out, "safetensors file to write")->required();
  logits->add_option("--chunk", options->chunk, "tokens per step")
      ->check(integer_in(1, 1 << 20))
      ->capture_default_str();
  add_eval_mode(*logits, *options);
  logits->add_flag("--json", options->json, "print a report on stdout");
  logits->callback([options, &action] { action = [options] { eval_logits(*options); }; });
  add_eval_perplexity(*eval, action);
  add_eval_divergence(*eval, action);
  add_eval_needle(*eval, action);
  add_eval_imatrix(*eval, action);
}

}  // namespace dsv4::apps
