#include "dsv4/model/model_spec.h"

#include "dsv4/base/error.h"

namespace dsv4 {

ModelSpec::ModelSpec(ModelConfig config, Checkpoint checkpoint, ExpertsPlacement placement)
    : config_(std::move(config)),
      schedule_(layer_schedule(config_)),
      cache_groups_(dsv4::cache_groups(config_)),
      checkpoint_(std::move(checkpoint)),
      placement_(placement) {
  // The drafter's other spelling: its blocks are further layers.
  const auto layer = [&](int64_t block) {
    return fmt::format("layers.{}.", config_.num_layers + block);
  };
  if (!checkpoint_.has(layer(0) + "e_proj.weight") &&
      !checkpoint_.has(layer(0) + "main_proj.weight"))
    return;
  for (int64_t block = 0; block < config_.mtp_layers; ++block)
    checkpoint_.rename_prefix(layer(block), fmt::format("mtp.{}.", block));
}

std::shared_ptr<const ModelSpec> ModelSpec::load(const std::string& folder,
                                                 ExpertsPlacement placement) {
  ModelConfig config = load_config(folder + "/config.json");
  return std::make_shared<const ModelSpec>(std::move(config), Checkpoint::open(folder), placement);
}

}  // namespace dsv4
