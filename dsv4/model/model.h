// The network: weights, schedule and one forward step (docs/spec/dsv4.md 3). It does not own a
// cache; the engine passes it views.

#pragma once

#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>

#include "dsv4/model/attention.h"
#include "dsv4/model/batch.h"
#include "dsv4/model/config.h"
#include "dsv4/model/schedule.h"
#include "dsv4/model/weights.h"

namespace dsv4 {

class Model {
 public:
  // Loads a folder with config.json and safetensors. Maps the weights; reads only the vectors that
  // are widened and the hash tables, which are checked.
  static Model load(const std::string& folder);
  // A model without files (Checkpoint::blank).
  static Model blank(const std::string& what, const ModelConfig& config,
                     const std::map<std::string, TensorMeta>& tensors,
                     const Checkpoint::Fill& fill);
  // A model whose tensors have no memory (Checkpoint::shapes), for dry runs.
  static Model shapes(const std::string& what, const ModelConfig& config,
                      const std::map<std::string, TensorMeta>& tensors);

  const ModelConfig& config() const { return config_; }
  const std::vector<LayerSpec>& schedule() const { return schedule_; }
  const std::vector<CacheGroupSpec>& cache_groups() const { return cache_groups_; }
  const ModelWeights& weights() const { return weights_; }
  const Checkpoint& checkpoint() const { return *checkpoint_; }

  // Runs every token of the step through the network, appending to the caches (one per layer).
  // All tensors must be in the memory of step.context's device. logits: [n, V] f32, of which the
  // first rows are written, one for each of step.logits_rows.
  void forward(Step& step, std::span<const LayerCache> caches, const TensorView& logits) const;

  // The device that holds the tensors that forward() reads; null: the host.
  Device* device() const { return device_.get(); }
  // Call after for_each_tensor() has pointed all tensors into `memory`, which the model then owns.
  void place(std::shared_ptr<Device> device, Buffer memory);

  // Visits every tensor that forward() reads, in the order in which it reads them. `visit` may
  // point the view to other memory: a model is moved to a device by copying each tensor and
  // changing its view.
  void for_each_tensor(const std::function<void(ConstTensorView&)>& visit);

 private:
  Model(ModelConfig config, Checkpoint checkpoint);
  void run_layer(Step& step, size_t l, const LayerCache& cache, const TensorView& streams) const;
  void run_head(Step& step, const TensorView& streams, const TensorView& logits) const;

  std::shared_ptr<Device> device_;  // outlives device_memory_
  Buffer device_memory_;
  std::unique_ptr<Checkpoint> checkpoint_;  // its address is fixed: the weights point into it
  ModelConfig config_;
  std::vector<LayerSpec> schedule_;
  std::vector<CacheGroupSpec> cache_groups_;
  ModelWeights weights_;
  RopeTables rope_;
};

}  // namespace dsv4
