// What a model is, apart from where its weights are: config, layer schedule, cache groups, the
// checkpoint that holds the tensors, and how ranks share the experts. Shared by all shards of the
// model (model.h).

#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "dsv4/comm/shard_id.h"
#include "dsv4/loader/checkpoint.h"
#include "dsv4/model/config.h"
#include "dsv4/model/schedule.h"

namespace dsv4 {

class ModelSpec {
 public:
  // A folder with config.json and safetensors, whose headers are read and whose data is mapped.
  static std::shared_ptr<const ModelSpec> load(
      const std::string& folder, ExpertsPlacement placement = ExpertsPlacement::kSliced);

  ModelSpec(ModelConfig config, Checkpoint checkpoint,
            ExpertsPlacement placement = ExpertsPlacement::kSliced);

  const ModelConfig& config() const { return config_; }
  const std::vector<LayerSpec>& schedule() const { return schedule_; }
  const std::vector<CacheGroupSpec>& cache_groups() const { return cache_groups_; }
  const Checkpoint& checkpoint() const { return checkpoint_; }
  ExpertsPlacement placement() const { return placement_; }

 private:
  ModelConfig config_;
  std::vector<LayerSpec> schedule_;
  std::vector<CacheGroupSpec> cache_groups_;
  Checkpoint checkpoint_;
  ExpertsPlacement placement_;
};

}  // namespace dsv4
