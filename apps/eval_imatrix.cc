// dsv4 eval imatrix MODEL -f TEXT -o FILE: the importance of the columns of every weight, which
// `dsv4 quantize --imatrix` reads (quality/imatrix_collector.h).

#include <CLI/CLI.hpp>
#include <memory>
#include <nlohmann/json.hpp>

#include "apps/commands.h"
#include "apps/eval_input.h"
#include "dsv4/base/error.h"
#include "dsv4/engine/device_model.h"
#include "dsv4/quality/imatrix_collector.h"
#include "dsv4/quality/logits_source.h"

namespace dsv4::apps {
namespace {

struct ImatrixOptions : EvalOptions {
  std::string out;
};

// Matrices of all routed experts; those that no token chose have no entry.
int64_t routed_matrices(const ModelConfig& config) {
  return 3 * config.num_experts * config.num_layers;
}

int64_t routed_in(const ImatrixCollector& collector) {
  int64_t count = 0;
  for (const auto& [name, sums] : collector.sums())
    count += name.find(".ffn.experts.") != std::string::npos ? 1 : 0;
  return count;
}

void eval_imatrix(ImatrixOptions options) {
  const auto begin = std::chrono::steady_clock::now();
  check_out(options.out);
  if (options.device == "auto") options.device = "cpu";  // where the collector sees the ops
  if (!is_cpu(options.device))
    fail(ErrorCode::kUnsupported,
         "--device {}: an imatrix is collected on the CPU, of a whole model: give --device cpu",
         options.device);
  const Model model = load_eval_model(options, options.model, eval_context(options), options.chunk);
  ImatrixCollector collector(model);
  const EvalText text = read_eval_text(options, model);
  const Model* const models[] = {&model};
  const WindowOptions how = window_options(options, models);
  const std::vector<Window> windows = eval_windows(text, how);
  Context context = step_context(options);
  context.observer = &collector;
  ModelLogits logits(model, context, how, options.chunk);
  int64_t tokens = 0;
  read_pieces(windows, how.bos, options.chunk, [&](const Piece& piece) {
    tokens += std::ssize(piece.ids);
    logits.next(piece);
  });
  collector.write(options.out, {{"tokens", std::to_string(tokens)},
                                {"text", text.what},
                                {"numerics", name(options.numerics)}});
  const std::chrono::duration<double> spent = std::chrono::steady_clock::now() - begin;
  const int64_t unused = routed_matrices(model.config()) - routed_in(collector);
  if (options.json) {
    return print_json({{"out", options.out},
                       {"tokens", tokens},
                       {"weights", collector.sums().size()},
                       {"unused_experts", unused / 3},
                       {"windows", windows.size()},
                       {"numerics", name(options.numerics)},
                       {"seconds", spent.count()}});
  }
  fmt::print("imatrix        {}: {} weights from {} tokens, {} numerics, {:.1f} s\n", options.out,
             collector.sums().size(), tokens, name(options.numerics), spent.count());
  if (unused > 0)
    fmt::print("               {} experts were chosen by no token and have no entry\n", unused / 3);
}

}  // namespace

void add_eval_imatrix(CLI::App& eval, Action& action) {
  CLI::App* command =
      eval.add_subcommand("imatrix", "Importance of weight columns, for quantize --imatrix");
  command->footer(
      "Example: dsv4 eval imatrix demo -f text.txt -o demo.imatrix\n"
      "         dsv4 quantize demo -o k2 --experts k2 --imatrix demo.imatrix");
  auto options = std::make_shared<ImatrixOptions>();
  add_eval_options(*command, *options);
  command->add_option("-o,--out", options->out, "safetensors file to write")->required();
  command->get_option("--out")->excludes("--check-numbers");
  command->callback([options, &action] { action = [options] { eval_imatrix(*options); }; });
}

}  // namespace dsv4::apps
