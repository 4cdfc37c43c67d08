#include "apps/speculate_options.h"

#include <CLI/CLI.hpp>

#include "apps/hub_models.h"
#include "dsv4/base/error.h"
#include "dsv4/engine/device_model.h"
#include "dsv4/model/model.h"

namespace dsv4::apps {
namespace {

// Why it is not run; empty: it is.
std::string no_drafter(const ModelSpec& spec, const SpeculateOptions& options,
                       const std::string& device) {
  const std::string why = no_mtp(spec.checkpoint(), spec.config());
  if (!why.empty()) return why;
  if (num_ranks(device) > 1) return "the MTP block runs on a whole model only: give one device";
  if (options.source == "auto" && !is_cpu(device))
    return "the MTP block has not been run on a GPU yet: give --speculate mtp to do so";
  return {};
}

}  // namespace

void add_speculate_options(CLI::App& command, SpeculateOptions& options) {
  command
      .add_option(
          "--speculate", options.source,
          "compute several tokens of an answer in a step where they can be guessed, by the model's "
          "own drafter (mtp), from text that repeats text and from grammars (lookup); no token "
          "changes")
      ->check(CLI::IsMember({"auto", "mtp", "dspark", "lookup", "off"}))
      ->option_text("auto|mtp|dspark|lookup|off (off)");
  command.add_option("--draft-tokens", options.draft_tokens, "tokens guessed at a time, 1 to 7")
      ->check(CLI::IsMember({"auto", "1", "2", "3", "4", "5", "6", "7"}))
      ->option_text("auto|1..7 (auto)");
}

Model load_with_drafter(const SpeculateOptions& options, const std::string& folder,
                        const std::string& device) {
  if (options.source == "dspark")
    fail(
        ErrorCode::kUnsupported,
        "--speculate dspark: this program does not run such drafters yet; want mtp, lookup or off");
  std::shared_ptr<const ModelSpec> spec = ModelSpec::load(folder);
  const int world = num_ranks(device);
  if (options.source != "mtp" && options.source != "auto") return Model::of_ranks(spec, world);
  const std::string why = no_drafter(*spec, options, device);
  if (why.empty()) return Model(std::move(spec), {}, DrafterKind::kMtp);
  if (options.source == "mtp")
    fail(ErrorCode::kUnsupported, "--speculate mtp: {}; want lookup or off", why);
  print_notice(fmt::format("note: speculation by lookup alone: {}", why));
  return Model::of_ranks(spec, world);
}

void apply_speculation(const SpeculateOptions& options, const Model& model, EngineOptions& engine) {
  engine.speculate = options.source == "off"               ? Speculate::kOff
                     : model.weights().drafter.has_value() ? Speculate::kMtp
                                                           : Speculate::kLookup;
  if (options.draft_tokens != "auto") engine.draft_tokens = options.draft_tokens[0] - '0';
}

std::string speculation_text(const SpeculationStats& stats) {
  if (stats.rounds == 0) return {};
  std::string text = fmt::format(
      "{:.2f} tokens a round of {}, drafts",
      static_cast<double>(stats.tokens) / static_cast<double>(stats.rounds), stats.rounds);
  for (size_t i = 0; i < stats.accepted_at.size() && stats.drafted_at[i] > 0; ++i)
    text += fmt::format(
        "{} {:.2f}", i == 0 ? "" : " /",
        static_cast<double>(stats.accepted_at[i]) / static_cast<double>(stats.drafted_at[i]));
  return text;
}

}  // namespace dsv4::apps
