// Steps of a model whose ranks are threads of this process (docs/adr/0030) and compute in host
// memory: every step runs on all of them, each with its own weights, temporaries and caches;
// sampling runs on rank 0.
//
// The engine sees one runner. What it copies in the cache is copied on every rank; what it copies
// out of the cache comes from rank 0, since all ranks have the same.

#include <omp.h>

#include <algorithm>

#include "dsv4/base/error.h"
#include "dsv4/comm/rank_team.h"
#include "dsv4/engine/host_runner.h"
#include "dsv4/engine/rank_memories.h"
#include "dsv4/engine/step_plan.h"

namespace dsv4 {
namespace {

// What the thread of a rank uses. Owned by its task too, so that it outlives a runner that gave up
// the rank.
struct Ranks {
  std::vector<std::shared_ptr<const ModelShard>> shards;  // of ranks 1, 2, ..
  std::vector<std::unique_ptr<HostRunner>> runners;       // [world]
  int threads = 1;                                        // of each rank
  std::function<void(ShardId, int64_t)> before_step;
  std::function<void(ShardId)> before_draft;
};

class RanksRunner final : public Runner {
 public:
  RanksRunner(const Model& model, const Context& context, const CacheLimits& limits,
              const RankOptions& options)
      : ranks_(std::make_shared<Ranks>()),
        team_(model.id().world, options.limit),
        caches_(std::vector<Memory*>(static_cast<size_t>(model.id().world), &host_memory()),
                [this] { return team_.lost(); }),
        logits_({&host_memory()}, [this] { return team_.lost(); }) {
    ranks_->shards.assign(model.others().begin(), model.others().end());
    ranks_->runners.push_back(std::make_unique<HostRunner>(model, context, limits));
    Context plain = context;
    plain.observer = nullptr;  // sees the calls of rank 0
    for (const auto& shard : ranks_->shards)
      ranks_->runners.push_back(std::make_unique<HostRunner>(*shard, plain, limits));
    ranks_->threads = std::max(1, omp_get_max_threads() / model.id().world);
    ranks_->before_step = options.before_step;
    ranks_->before_draft = options.before_draft;
  }

  Memory& memory() override { return caches_; }
  Memory& logits_memory() override { return logits_; }
  bool on_host() const override { return true; }
  const Scratch& scratch() const override { return first().scratch(); }
  Memory& staging() override { return host_memory(); }
  void observe(Observer* observer) override { first().observe(observer); }
  std::vector<RankStats> rank_stats() override {
    std::vector<RankStats> all;
    if (team_.lost()) return all;  // that rank still counts
    for (const auto& runner : ranks_->runners) all.push_back(runner->rank_stats().front());
    return all;
  }

  void forward(const ForwardBatch& batch, std::span<const LayerCache> caches,
               const TensorView& logits, const DrafterStreams& drafter) override {
    const auto plan = std::make_shared<const StepPlan>(steps_++, batch);
    auto of_rank = std::make_shared<std::vector<RankMemory>>();
    for (int rank = 0; rank < team_.world(); ++rank)
      of_rank->push_back(
          {caches_of_rank(caches, caches_, rank), streams_of_rank(drafter, caches_, rank)});
    run_all([plan, of_rank, logits](Ranks& ranks, ShardId id, HostRunner& runner) {
      if (ranks.before_step) ranks.before_step(id, plan->step());
      const RankMemory& own = (*of_rank)[static_cast<size_t>(id.rank)];
      runner.forward(plan->batch(), own.caches, logits, own.streams);
    });
  }

  Drafted draft(const DraftChain& chain) override {
    const std::shared_ptr<const DraftPlans> plans = plans_of_ranks(chain, caches_);
    const auto drafted = std::make_shared<Drafted>();  // of rank 0
    run_all([plans, drafted](Ranks& ranks, ShardId id, HostRunner& runner) {
      if (ranks.before_draft) ranks.before_draft(id);
      Drafted own = runner.draft((*plans)[static_cast<size_t>(id.rank)]->chain());
      if (id.rank == 0) *drafted = std::move(own);
    });
    return *drafted;
  }

  std::vector<Sampled> sample(const ConstTensorView& logits, const SampleRows& rows) override {
    return first().sample(logits, rows);
  }

  void copy(std::span<const CopyPiece> pieces) override {
    for (int rank = 0; rank < team_.world(); ++rank) {
      for (const CopyPiece& piece : pieces) {
        std::byte* const to = caches_.at(rank, piece.to);
        if (to == nullptr && rank > 0) continue;  // out of the cache: from rank 0
        const std::byte* const from = caches_.at(rank, piece.from);
        std::copy_n(from != nullptr ? from : piece.from, piece.bytes,
                    to != nullptr ? to : piece.to);
      }
    }
  }
  std::unique_ptr<Transfer> start_copy(std::span<const CopyPiece> pieces) override {
    copy(pieces);
    return std::make_unique<FinishedTransfer>();
  }

 private:
  struct RankMemory {
    std::vector<LayerCache> caches;
    DrafterStreams streams;
  };

  // body(ranks, id, runner of the rank) by the threads of all ranks.
  template <class Body>
  void run_all(Body body) {
    team_.run([ranks = ranks_, body](Communicator& self) {
      HostRunner& runner = *ranks->runners[static_cast<size_t>(self.id().rank)];
      omp_set_num_threads(ranks->threads);
      runner.join(self);
      body(*ranks, self.id(), runner);
    });
  }

  HostRunner& first() const { return *ranks_->runners.front(); }

  std::shared_ptr<Ranks> ranks_;
  RankTeam team_;
  RankMemories caches_, logits_;
  int64_t steps_ = 0;
};

}  // namespace

std::unique_ptr<Runner> make_ranks_runner(const Model& model, const Context& context,
                                          const CacheLimits& limits, const RankOptions& ranks) {
#if DSV4_CUDA
  if (context.device != nullptr) return make_device_ranks_runner(model, context, limits, ranks);
#endif
  DSV4_CHECK(context.device == nullptr, "this build runs on the {} only", "host");
  return std::make_unique<RanksRunner>(model, context, limits, ranks);
}

}  // namespace dsv4
