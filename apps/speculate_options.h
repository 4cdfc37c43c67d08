// --speculate and --draft-tokens, which run, chat and serve share (docs/speculation.md).

#pragma once

#include <string>

#include "dsv4/engine/engine_options.h"

namespace CLI {
class App;
}  // namespace CLI

namespace dsv4::apps {

struct SpeculateOptions {
  std::string source = "off", draft_tokens = "auto";
};

void add_speculate_options(CLI::App& command, SpeculateOptions& options);

// Throws kUnsupported for drafters that this program or this model does not have.
void apply_speculation(const SpeculateOptions& options, const Model& model, EngineOptions& engine);

// "2.31 tokens a round of 410, drafts 0.79 / 0.61"; empty: there was no round.
std::string speculation_text(const SpeculationStats& stats);

}  // namespace dsv4::apps
