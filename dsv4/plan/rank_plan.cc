#include "dsv4/plan/rank_plan.h"

#include <algorithm>

#include "dsv4/base/error.h"
#include "dsv4/engine/device_weights.h"
#include "dsv4/engine/draft_buffers.h"
#include "dsv4/engine/draft_head.h"
#include "dsv4/engine/model_cache.h"
#include "dsv4/model/dry_run.h"

namespace dsv4 {
namespace {

std::shared_ptr<const ModelSpec> spec_of(const ModelConfig& config, const ConvertList& weights,
                                         ExpertsPlacement placement) {
  std::map<std::string, TensorMeta> tensors;
  for (const OutputItem& item : weights.items)
    for (const OutputTensor& tensor : item.tensors) tensors.emplace(tensor.name, tensor.meta);
  return std::make_shared<const ModelSpec>(
      config, Checkpoint::shapes("the list of tensors", tensors), placement);
}

// Adds up what a rank receives in a dry run of a step.
class CountReceived final : public Communicator {
 public:
  explicit CountReceived(ShardId id) : id_(id) {}
  ShardId id() const override { return id_; }
  void gather(std::span<const Gathered> tensors, const Place&) override {
    for (const Gathered& tensor : tensors) bytes_ += received_bytes(tensor, id_.rank);
  }
  void to_root(const TensorView&, const TensorView&, const ColumnEnds&, const Place&) override {}
  void gather_rows(const TensorView& all, const ConstTensorView&, const Place&) override {
    bytes_ += all.bytes();  // of a token that another rank owns
  }
  int64_t bytes() const { return bytes_; }

 private:
  ShardId id_;
  int64_t bytes_ = 0;
};

// The calls of a step that compute nothing.
class Skip final : public Observer {
 public:
  void observe(const OpCall& call) override {
    if (call.impl().parts()) call.run();
  }
};

int64_t received_per_token(const ModelShard& shard, Numerics numerics, DrafterKind drafter,
                           StepExtents step) {
  Skip skip;
  const Context context{.numerics = numerics, .observer = &skip};
  const ModelCache cache(shard.config(), numerics,
                         {.max_tokens = 1, .max_batch_tokens = 1, .drafter = drafter},
                         unmapped_memory());
  CountReceived count(shard.id());
  step.enters = drafter;
  dry_run(shard, context, step, cache.layers(), &count);
  return count.bytes() / step.tokens;
}

StepExtents prompt_step(const ModelShard& shard) {
  constexpr int64_t kTokens = 4096;
  int64_t listed = 0;  // tokens whose entries are all attended to
  for (const CacheGroupSpec& group : shard.cache_groups())
    if (group.has_index) listed = std::max(listed, group.ratio * shard.config().index_topk);
  return largest_step(shard.cache_groups(),
                      {.tokens = kTokens, .sequences = 1, .context = listed + kTokens});
}

int64_t tensor_bytes(const std::vector<TensorPlace>& places) {
  int64_t bytes = 0;
  for (const TensorPlace& place : places) bytes += place.from.bytes();
  return bytes;
}

}  // namespace

std::vector<RankPlan> plan_ranks(const ModelConfig& config, const ConvertList& weights,
                                 const PlanRequest& request, int world) {
  DSV4_CHECK(world >= 1, "{} ranks", world);
  const DrafterKind drafter = request.drafter ? drafter_kind(config) : DrafterKind::kNone;
  const auto spec = spec_of(config, weights, request.placement);
  const CacheLimits limits = cache_limits(config, request);
  const int64_t cache = plan_cache(config, request.numerics, limits).plan.bytes();
  std::vector<RankPlan> ranks;
  // Tensors that are whole on every rank: what all ranks have together is the model and these
  // again, world - 1 times.
  int64_t together = 0;
  for (int rank = 0; rank < world; ++rank) {
    ModelShard shard(spec, {rank, world}, drafter);
    const std::vector<TensorPlace> places = place_tensors(shard);
    ranks.push_back(
        {.id = shard.id(),
         .weights_bytes = placed_bytes(places),
         .own_bytes = tensor_bytes(places),
         .cache_bytes = cache,
         .scratch_bytes = plan_workspace(shard, {.numerics = request.numerics}, limits, 0).step,
         .guesses_bytes = DraftBuffers::bytes(config, request.numerics, limits),
         .draft_head_bytes = drafter == DrafterKind::kMtp ? DraftHead::bytes(shard) : 0,
         .received_bytes_per_token = received_per_token(shard, request.numerics, drafter,
                                                        decode_step(shard.cache_groups(), 1, 1)),
         .received_bytes_per_prompt_token =
             received_per_token(shard, request.numerics, drafter, prompt_step(shard))});
    together += ranks.back().own_bytes;
  }
  ModelShard whole(spec, {}, drafter);
  const int64_t all = tensor_bytes(place_tensors(whole));
  const int64_t copies = world == 1 ? 0 : (together - all) / (world - 1);
  for (RankPlan& rank : ranks) rank.own_bytes -= copies;
  return ranks;
}

}  // namespace dsv4
