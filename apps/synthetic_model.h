// Models with random weights for commands that measure: their options and the model.

#pragma once

#include <string>

#include "dsv4/model/model.h"

namespace CLI {
class App;
}  // namespace CLI

namespace dsv4::apps {

struct SyntheticOptions {
  std::string synthetic, experts, dense, recipe, routing;
  int64_t layers = 0;
  uint64_t seed = 1;

  bool has_recipe() const {
    return !experts.empty() || !dense.empty() || !recipe.empty() || !routing.empty() || layers != 0;
  }
};

void add_synthetic_options(CLI::App& command, SyntheticOptions& options);

// Throws unless there is either a model or --synthetic, whose other options need it, and for
// --synthetic a GPU. command: for the message
void check_synthetic_options(const SyntheticOptions& options, const std::string& model,
                             const std::string& device, const char* command);

// Its large tensors are made on a device (plan/synthetic.h).
Model make_synthetic_model(const SyntheticOptions& options, DrafterKind drafter, ShardId shard,
                           bool alone = false,
                           ExpertsPlacement placement = ExpertsPlacement::kSliced);

}  // namespace dsv4::apps
