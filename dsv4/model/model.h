// The network: a model's weights in the memory of one device, and one forward step
// (docs/spec/dsv4.md 3). It does not own a cache; the engine passes it views.

#pragma once

#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "dsv4/model/attention.h"
#include "dsv4/model/batch.h"
#include "dsv4/model/model_spec.h"
#include "dsv4/model/weights.h"

namespace dsv4 {

class RankProcesses;  // comm/rank_processes.h
class ExpertStore;    // engine/expert_store.h: memory that views of a model point into

// The weights that one rank of several owns. A rank of a world of one owns them all.
class ModelShard {
 public:
  // Maps the weights of the rank; reads only the vectors that are widened and the hash tables,
  // which are checked.
  explicit ModelShard(std::shared_ptr<const ModelSpec> spec, ShardId id = {},
                      DrafterKind wanted = DrafterKind::kNone);

  // A world of one: from a folder with config.json and safetensors,
  static ModelShard load(const std::string& folder, DrafterKind wanted = DrafterKind::kNone);
  // or rank 0 with the others of its world.
  static ModelShard load(const std::string& folder, int world,
                         ExpertsPlacement placement = ExpertsPlacement::kSliced,
                         DrafterKind wanted = DrafterKind::kNone);
  static ModelShard of_ranks(const std::shared_ptr<const ModelSpec>& spec, int world,
                             DrafterKind wanted = DrafterKind::kNone);
  // A world of one without files (Checkpoint::blank)
  static ModelShard blank(const std::string& what, const ModelConfig& config,
                          const std::map<std::string, TensorMeta>& tensors,
                          const Checkpoint::Fill& fill, DrafterKind wanted = DrafterKind::kNone);
  // or memory (Checkpoint::shapes), for dry runs.
  static ModelShard shapes(const std::string& what, const ModelConfig& config,
                           const std::map<std::string, TensorMeta>& tensors,
                           DrafterKind wanted = DrafterKind::kNone);

  const ModelSpec& spec() const { return *spec_; }
  const std::shared_ptr<const ModelSpec>& shared_spec() const { return spec_; }
  ShardId id() const { return id_; }
  // Ranks 1, 2, .. of a world whose ranks are all in this process, on rank 0; else empty.
  std::span<const std::shared_ptr<ModelShard>> others() const { return others_; }
  // Gives rank 0 these others.
  void lead(std::vector<std::shared_ptr<ModelShard>> others);
  // How this rank reaches the others where each is a process of its own; else null.
  RankProcesses* processes() const { return processes_.get(); }
  void join(std::shared_ptr<RankProcesses> processes) { processes_ = std::move(processes); }
  const ModelConfig& config() const { return spec_->config(); }
  const std::vector<LayerSpec>& schedule() const { return spec_->schedule(); }
  const std::vector<CacheGroupSpec>& cache_groups() const { return spec_->cache_groups(); }
  const ModelWeights& weights() const { return weights_; }
  const Checkpoint& checkpoint() const { return spec_->checkpoint(); }

  // Runs every token of the step through the network, appending to the caches (one per layer, and
  // the drafter's where the step enters its tokens). All tensors must be in the memory of
  // step.context's device. logits: [n, V] f32, of which the first rows are written, one for each of
  // step.logits_rows. A rank of several exchanges values with the others through step.ranks, and
  // all of them run the same step; logits are those of rank 0, on other ranks `logits` is not used.
  // drafter: of MTP
  void forward(Step& step, std::span<const LayerCache> caches, const TensorView& logits,
               const DrafterStreams& drafter = {}) const;
  // Guesses of MTP: one pass of its block over a step of make_draft_step() (mtp.h), which also
  // enters its tokens. before: X of the token before each one [T, m, D]; streams: the block's
  // own [T, m, D], which a further guess takes; logits: [T, V] f32, of several ranks on each of
  // them, so that all draw the same guesses.
  void draft(Step& step, const LayerCache& cache, const ConstTensorView& before,
             const TensorView& streams, const TensorView& logits) const;
  // Guesses of DSpark (dspark.h): a pass of its stages over a step of make_block_step(), which
  // gives the rows hidden and logits,
  void draft_block(Step& step, std::span<const LayerCache> caches, const BlockGuesses& out) const;
  // for one guess after the other what follows from the one before, ids [runs],
  void guess_after(Step& step, const ConstTensorView& ids, const BlockGuesses& rows) const;
  // and after the last one how likely each is to hold: [n, 1] f32, before the sigmoid.
  void confidences(Step& step, const BlockGuesses& guesses, const TensorView& out) const;

  // Ranks share out the selection of entries in steps of at least so many tokens (ranks.h). Set it
  // before the first step, equal on all ranks; here also on others().
  void share_steps_from(int64_t tokens);
  int64_t least_shared_tokens() const { return least_shared_tokens_; }

  // The device that holds the tensors that forward() reads; null: the host.
  Device* device() const { return device_.get(); }
  const std::shared_ptr<Device>& shared_device() const { return device_; }
  // Call after for_each_tensor() has pointed all tensors into `memory`, which the model then owns.
  void place(std::shared_ptr<Device> device, Buffer memory);

  // From now on steps read the experts through fetch[layer].places and bring those that they chose
  // there. All of them are images. owner: of that memory; it lives as long as the model.
  void fetch_experts(const std::vector<ExpertsFetchArgs>& fetch,
                     std::shared_ptr<ExpertStore> owner);
  ExpertStore* expert_store() const { return expert_store_.get(); }  // null: nothing is fetched

  // Before the model is placed: changes experts to the layout that the ops read best in this
  // context. Whoever places the model makes the images of those that it returns.
  std::vector<PackedExperts> choose_layouts(const Context& context) {
    return dsv4::choose_layouts(context, weights_);
  }

  // Visits the images of the layers whose experts have that layout.
  void for_each_images(const std::function<void(ExpertImages&)>& visit) {
    dsv4::for_each_images(weights_, visit);
  }

  int64_t weight_bytes() const;  // of every tensor that forward() reads

  // Visits every tensor that forward() reads, in the order in which it reads them. `visit` may
  // point the view to other memory: a model is moved to a device by copying each tensor and
  // changing its view.
  void for_each_tensor(const std::function<void(ConstTensorView&)>& visit);

 private:
  void run_embedding(Step& step, const TensorView& streams) const;
  void run_head(Step& step, const TensorView& streams, const TensorView& logits) const;
  // hidden [n, D] of streams [n, m, D], and logits [n, V] of them
  void run_hidden(Step& step, const ConstTensorView& streams, const HyperWeights& hc,
                  const TensorView& hidden) const;
  void run_logits(Step& step, const ConstTensorView& hidden, const ConstTensorView& norm,
                  const TensorView& logits) const;
  // Logits of guesses, by the step's copy of the head where it is faster.
  void run_draft_logits(Step& step, const ConstTensorView& hidden, const TensorView& logits) const;
  const DrafterWeights& drafter(DrafterKind kind) const;

  std::shared_ptr<Device> device_;  // outlives device_memory_
  Buffer device_memory_;
  std::shared_ptr<const ModelSpec> spec_;  // the weights point into its checkpoint
  ShardId id_;
  ModelWeights weights_;
  RopeTables rope_;
  std::vector<std::shared_ptr<ModelShard>> others_;
  std::shared_ptr<RankProcesses> processes_;
  std::shared_ptr<ExpertStore> expert_store_;
  int64_t least_shared_tokens_;
};

// What the engine runs: a whole model, or rank 0, which leads the others of its world.
using Model = ModelShard;

}  // namespace dsv4
