// The network: weights, schedule and one forward step (spec dsv4.md 3). It owns no cache; the
// engine hands it views.

#pragma once

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
  // A folder with config.json and safetensors. Maps the weights; reads only vectors to widen and
  // the hash tables to check.
  static Model load(const std::string& folder);

  const ModelConfig& config() const { return config_; }
  const std::vector<LayerSpec>& schedule() const { return schedule_; }
  const ModelWeights& weights() const { return weights_; }
  const Checkpoint& checkpoint() const { return *checkpoint_; }

  // Runs every token of the batch through the network, appending to the caches (one per layer).
  // logits: [batch.logits_rows.size(), V] f32
  void forward(const Context& context, const ForwardBatch& batch,
               std::span<const LayerCache> caches, Scratch& scratch,
               const TensorView& logits) const;

 private:
  Model() = default;
  void run_layer(Step& step, size_t l, const LayerCache& cache, const TensorView& streams) const;
  void run_head(Step& step, const TensorView& streams, const TensorView& logits) const;

  std::unique_ptr<Checkpoint> checkpoint_;  // stays at one address: the weights point into it
  ModelConfig config_;
  std::vector<LayerSpec> schedule_;
  ModelWeights weights_;
  RopeTables rope_;
};

}  // namespace dsv4
