#include "apps/speculate_options.h"

#include <CLI/CLI.hpp>

#include "dsv4/base/error.h"
#include "dsv4/model/model.h"

namespace dsv4::apps {

void add_speculate_options(CLI::App& command, SpeculateOptions& options) {
  command
      .add_option(
          "--speculate", options.source,
          "compute several tokens of an answer in a step where text that repeats text, or a "
          "grammar, lets them be guessed; no token changes")
      ->check(CLI::IsMember({"auto", "mtp", "dspark", "lookup", "off"}))
      ->option_text("auto|mtp|dspark|lookup|off (off)");
  command.add_option("--draft-tokens", options.draft_tokens, "tokens guessed at a time, 1 to 7")
      ->check(CLI::IsMember({"auto", "1", "2", "3", "4", "5", "6", "7"}))
      ->option_text("auto|1..7 (auto)");
}

void apply_speculation(const SpeculateOptions& options, const Model& model, EngineOptions& engine) {
  if (options.source == "mtp" || options.source == "dspark") {
    fail(ErrorCode::kUnsupported,
         "--speculate {}: this program does not run such drafters yet; want lookup or off",
         options.source);
  }
  static_cast<void>(model);
  engine.speculate = options.source == "off" ? Speculate::kOff : Speculate::kLookup;
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
