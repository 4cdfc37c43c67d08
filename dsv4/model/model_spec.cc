#include "dsv4/model/model_spec.h"

namespace dsv4 {

ModelSpec::ModelSpec(ModelConfig config, Checkpoint checkpoint)
    : config_(std::move(config)),
      schedule_(layer_schedule(config_)),
      cache_groups_(dsv4::cache_groups(config_)),
      checkpoint_(std::move(checkpoint)) {
}

std::shared_ptr<const ModelSpec> ModelSpec::load(const std::string& folder) {
  ModelConfig config = load_config(folder + "/config.json");
  return std::make_shared<const ModelSpec>(std::move(config), Checkpoint::open(folder));
}

}  // namespace dsv4
