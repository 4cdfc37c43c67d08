#include "dsv4/model/model_spec.h"

#include "dsv4/base/error.h"

namespace dsv4 {

ModelSpec::ModelSpec(ModelConfig config, Checkpoint checkpoint)
    : config_(std::move(config)),
      schedule_(layer_schedule(config_)),
      cache_groups_(dsv4::cache_groups(config_)),
      checkpoint_(std::move(checkpoint)) {
  // The drafter's other spelling: one layer more.
  const std::string one_more = fmt::format("layers.{}.", config_.num_layers);
  if (config_.mtp_layers == 1 && checkpoint_.has(one_more + "e_proj.weight"))
    checkpoint_.rename_prefix(one_more, "mtp.0.");
}

std::shared_ptr<const ModelSpec> ModelSpec::load(const std::string& folder) {
  ModelConfig config = load_config(folder + "/config.json");
  return std::make_shared<const ModelSpec>(std::move(config), Checkpoint::open(folder));
}

}  // namespace dsv4
