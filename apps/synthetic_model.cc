#include "apps/synthetic_model.h"

#include <CLI/CLI.hpp>
#include <charconv>

#include "apps/common.h"
#include "dsv4/base/error.h"
#include "dsv4/engine/device_model.h"
#include "dsv4/plan/synthetic.h"

namespace dsv4::apps {
namespace {

// The exponent of "zipf:S"; 0 for "uniform" and "".
double parse_routing(const std::string& text) {
  if (text.empty() || text == "uniform") return 0;
  double skew = 0;
  const std::string_view prefix = "zipf:";
  const char* const end = text.data() + text.size();
  if (text.starts_with(prefix)) {
    const auto [stop, error] = std::from_chars(text.data() + prefix.size(), end, skew);
    if (error == std::errc() && stop == end && skew >= 0 && skew <= 10) return skew;
  }
  fail(ErrorCode::kBadInput, "--routing {}: want uniform, or zipf:S with S from 0 to 10", text);
}

}  // namespace

void add_synthetic_options(CLI::App& command, SyntheticOptions& options) {
  command
      .add_option("--synthetic", options.synthetic,
                  "a full-size model with random weights, made on the device")
      ->check(CLI::IsMember({"flash", "pro"}))
      ->option_text("flash|pro");
  command.add_option("--experts", options.experts,
                     "synthetic: format of routed experts, also mxfp4 or nvfp4");
  command.add_option("--dense", options.dense, "synthetic: format of the FP8 weights");
  command.add_option("--recipe", options.recipe, "synthetic: recipe file");
  command
      .add_option("--layers", options.layers, "synthetic: number of layers to keep, from the first")
      ->check(integer_in(1, 1 << 20));
  command
      .add_option("--routing", options.routing,
                  "synthetic: popularity of experts, equal or 1/rank^S (default: uniform)")
      ->option_text("uniform|zipf:S");
}

void check_synthetic_options(const SyntheticOptions& options, const std::string& model,
                             const std::string& device, const char* command) {
  if (model.empty() == options.synthetic.empty())
    fail(ErrorCode::kBadInput, "{} needs either a model or --synthetic flash|pro", command);
  if (options.synthetic.empty() && options.has_recipe())
    fail(ErrorCode::kBadInput,
         "--experts, --dense, --recipe, --layers and --routing require --synthetic: {} has fixed "
         "formats",
         model);
  if (!options.synthetic.empty() && on_cpu(device))
    fail(ErrorCode::kUnsupported, "--synthetic generates its weights on a GPU: add --device {}",
         "cuda");
}

Model make_synthetic_model(const SyntheticOptions& options, DrafterKind drafter, ShardId shard,
                           bool alone, ExpertsPlacement placement) {
  return synthetic_model(options.synthetic,
                         read_formats(options.experts, options.dense, options.recipe),
                         options.layers, options.seed, parse_routing(options.routing), drafter,
                         shard, alone, placement);
}

}  // namespace dsv4::apps
