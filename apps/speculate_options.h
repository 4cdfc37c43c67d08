// --speculate, --draft-tokens and --draft-head, which run, chat and serve share
// (docs/speculation.md).

#pragma once

#include <string>

#include "dsv4/engine/device_model.h"
#include "dsv4/engine/engine_options.h"

namespace CLI {
class App;
}  // namespace CLI

namespace dsv4::apps {

struct SpeculateOptions {
  std::string source = "off", draft_tokens = "auto", draft_head = "auto";
};

void add_speculate_options(CLI::App& command, SpeculateOptions& options);

// Loads the model with the drafter that is wanted; devices: opened. Throws for drafters that this
// program, the device or the model does not have; `auto` says on stderr that it does without.
Model load_with_drafter(const SpeculateOptions& options, const std::string& folder,
                        const std::string& device, const Devices& devices,
                        ExpertsPlacement placement);
// The drafter of a model with random weights: the one that is named, which has random weights too.
DrafterKind random_drafter(const SpeculateOptions& options);
void apply_speculation(const SpeculateOptions& options, const Model& model,
                       const std::string& device, EngineOptions& engine);

void add_draft_head_option(CLI::App& command, std::string& choice);
// Whether guesses of this drafter read a copy of the head in 4 bits: as it is chosen, and with auto
// those of MTP on a GPU.
bool copies_head(const std::string& choice, DrafterKind drafter, bool on_gpu);

// "2.31 tokens a round of 410, drafts 0.79 / 0.61"; empty: there was no round.
std::string speculation_text(const SpeculationStats& stats);

}  // namespace dsv4::apps
