// dsv4 eval ppl MODEL -f TEXT: perplexity and bits per byte.

#include <CLI/CLI.hpp>
#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>

#include "apps/commands.h"
#include "apps/eval_input.h"
#include "apps/expert_record.h"
#include "dsv4/base/error.h"
#include "dsv4/quality/logits_source.h"
#include "dsv4/quality/perplexity.h"

namespace dsv4::apps {
namespace {

struct PerplexityOptions : EvalOptions {
  ExpertRecordOptions record;
};

void eval_perplexity(const PerplexityOptions& options) {
  const auto begin = std::chrono::steady_clock::now();
  const Model model = load_eval_model(options, options.model, eval_context(options), options.chunk);
  const EvalText text = read_eval_text(options, model);
  const Model* const models[] = {&model};
  const WindowOptions how = window_options(options, models);
  const std::vector<Window> windows = eval_windows(text, how);

  const EvalContext context(options, model);
  ModelLogits logits(model, *context, how, options.chunk);
  const ExpertRecord record(options.record, options.device, false, model.config());
  if (record.trace() != nullptr) logits.trace_experts(record.trace().get());
  PerplexityMeter meter(options.model);
  read_pieces(windows, how.bos, options.chunk,
              [&](const Piece& piece) { meter.add(logits.next(piece), piece); });
  record.finish(model);
  const Perplexity result = meter.result();
  const std::chrono::duration<double> spent = std::chrono::steady_clock::now() - begin;

  nlohmann::json report = {{"tokens", result.tokens},
                           {"perplexity", result.value},
                           {"perplexity_error", result.error},
                           {"nll", result.nll},
                           {"nll_error", result.nll_error},
                           {"windows", windows.size()},
                           {"context", how.context},
                           {"stride", stride_of(how)},
                           {"numerics", name(options.numerics)},
                           {"seconds", spent.count()}};
  if (text.tokenizer) {
    const int64_t bytes = counted_bytes(*text.tokenizer, windows);
    report["bytes"] = bytes;
    report["bits_per_byte"] = result.nll * static_cast<double>(result.tokens) /
                              (std::log(2.0) * static_cast<double>(bytes));
  }
  if (options.json) return print_json(report);
  fmt::print("perplexity     {}\n", with_error(result.value, result.error, 5));
  if (text.tokenizer) fmt::print("bits per byte  {:.4f}\n", report["bits_per_byte"].get<double>());
  fmt::print("tokens         {} in {} windows of up to {}, stride {}, {} numerics, {:.1f} s\n",
             result.tokens, windows.size(), how.context, stride_of(how), name(options.numerics),
             spent.count());
}

}  // namespace

void add_eval_perplexity(CLI::App& eval, Action& action) {
  CLI::App* command = eval.add_subcommand("ppl", "Perplexity of a text");
  command->footer("Example: dsv4 eval ppl demo -f tests/golden/demo/heldout.txt");
  auto options = std::make_shared<PerplexityOptions>();
  add_eval_options(*command, *options);
  add_expert_record(*command, options->record);
  command->callback([options, &action] { action = [options] { eval_perplexity(*options); }; });
}

}  // namespace dsv4::apps
