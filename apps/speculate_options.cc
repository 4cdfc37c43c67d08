#include "apps/speculate_options.h"

#include <CLI/CLI.hpp>

#include "apps/hub_models.h"
#include "apps/rank_process.h"
#include "dsv4/base/error.h"
#include "dsv4/engine/device_model.h"
#include "dsv4/model/model.h"

namespace dsv4::apps {
namespace {

// 0: chosen
int64_t draft_tokens(const SpeculateOptions& options) {
  return options.draft_tokens == "auto" ? 0 : options.draft_tokens[0] - '0';
}

// Why it is not run; empty: it is.
std::string refusal(const ModelSpec& spec, DrafterKind kind, const SpeculateOptions& options,
                    const std::string& device) {
  const std::string why = no_drafter(spec.checkpoint(), spec.config(), kind);
  if (!why.empty()) return why;
  if (options.source == "auto" && !on_cpu(device))
    return fmt::format("on a GPU give --speculate {} for the model's drafter", name(kind));
  const int64_t block = spec.config().dspark.block_size;
  if (const int64_t drafts = draft_tokens(options); kind == DrafterKind::kDspark && drafts > block)
    return fmt::format("--draft-tokens {}: the model's block guesses {}", drafts, block);
  return {};
}

// auto: the one of the checkpoint, whatever it is.
DrafterKind wanted_kind(const SpeculateOptions& options, const ModelConfig& config) {
  if (options.source == "dspark") return DrafterKind::kDspark;
  return options.source == "auto" && !config.dspark.empty() ? DrafterKind::kDspark
                                                            : DrafterKind::kMtp;
}

}  // namespace

void add_speculate_options(CLI::App& command, SpeculateOptions& options) {
  command
      .add_option(
          "--speculate", options.source,
          "compute several tokens of an answer in a step where they can be guessed, by the model's "
          "own drafter (mtp, dspark), from text that repeats text and from grammars (lookup); no "
          "token "
          "changes")
      ->check(CLI::IsMember({"auto", "mtp", "dspark", "lookup", "off"}))
      ->option_text("auto|mtp|dspark|lookup|off (off)");
  command.add_option("--draft-tokens", options.draft_tokens, "tokens guessed at a time, 1 to 7")
      ->check(CLI::IsMember({"auto", "1", "2", "3", "4", "5", "6", "7"}))
      ->option_text("auto|1..7 (auto)");
  add_draft_head_option(command, options.draft_head);
}

Model load_with_drafter(const SpeculateOptions& options, const std::string& folder,
                        const std::string& device, const Devices& devices,
                        ExpertsPlacement placement) {
  std::shared_ptr<const ModelSpec> spec = ModelSpec::load(folder, placement);
  if (options.source == "off" || options.source == "lookup")
    return load_ranks(spec, device, devices);
  const DrafterKind kind = wanted_kind(options, spec->config());
  const std::string why = refusal(*spec, kind, options, device);
  if (why.empty()) return load_ranks(spec, device, devices, kind);
  if (options.source != "auto")
    fail(ErrorCode::kUnsupported, "--speculate {}: {}; want lookup or off", options.source, why);
  print_notice(fmt::format("note: speculation by lookup alone: {}", why));
  return load_ranks(spec, device, devices);
}

DrafterKind random_drafter(const SpeculateOptions& options) {
  if (options.source != "mtp" && options.source != "dspark") return DrafterKind::kNone;
  return options.source == "mtp" ? DrafterKind::kMtp : DrafterKind::kDspark;
}

void apply_speculation(const SpeculateOptions& options, const Model& model,
                       const std::string& device, EngineOptions& engine) {
  engine.speculate = options.source == "off" ? Speculate::kOff : speculate_with_drafter(model);
  engine.draft_tokens = draft_tokens(options);
  engine.draft_head =
      copies_head(options.draft_head, drafter_kind(engine.speculate), !on_cpu(device));
}

void add_draft_head_option(CLI::App& command, std::string& choice) {
  command
      .add_option(
          "--draft-head", choice,
          "what the model's drafter reads for its guesses: the head as it is stored (same), "
          "or a copy in 4 bits (k4); auto: k4 for mtp on a GPU")
      ->check(CLI::IsMember({"auto", "same", "k4"}))
      ->option_text("auto|same|k4 (auto)");
}

bool copies_head(const std::string& choice, DrafterKind drafter, bool on_gpu) {
  if (drafter == DrafterKind::kNone || choice == "same") return false;
  return choice == "k4" || (drafter == DrafterKind::kMtp && on_gpu);
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
