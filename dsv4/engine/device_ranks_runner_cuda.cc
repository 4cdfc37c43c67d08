// Steps of a model whose ranks are GPUs of this process, or share some (docs/adr/0030): a thread, a
// runner (device_runner_cuda.cc), weights and caches for each rank; sampling runs on rank 0.
//
// As ranks_runner.cc for the engine. A step is only enqueued; whether all exchanges of it had their
// values is known after a wait, so everything that waits for rank 0 asks then.
//
// The calling thread has rank 0's GPU as its current one before and after every call.

#include <algorithm>

#include "dsv4/base/error.h"
#include "dsv4/base/not_finite.h"
#include "dsv4/comm/device_ranks.h"
#include "dsv4/comm/rank_team.h"
#include "dsv4/device/current_device.h"
#include "dsv4/engine/rank_memories.h"
#include "dsv4/engine/runner.h"
#include "dsv4/engine/step_plan.h"

namespace dsv4 {
namespace {

// Memory of one rank's device. checked: reads find out whether the exchanges before had their
// values.
class MemoryOfRank final : public Memory {
 public:
  MemoryOfRank(Device& device, Device& home, const DeviceRanks* checked)
      : device_(device), home_(home), checked_(checked) {}
  std::byte* allocate(int64_t bytes) override {
    const VisitDevice visit(device_, home_);
    return device_.memory().allocate(bytes);
  }
  void release(std::byte* data) noexcept override { device_.memory().release(data); }
  void upload(std::byte* to, const std::byte* from, int64_t bytes) override {
    const VisitDevice visit(device_, home_);
    device_.memory().upload(to, from, bytes);
  }
  void download(std::byte* to, const std::byte* from, int64_t bytes) override {
    const VisitDevice visit(device_, home_);
    device_.memory().download(to, from, bytes);
    if (checked_ != nullptr) checked_->check();
  }

 private:
  Device &device_, &home_;
  const DeviceRanks* const checked_;
};

// What the thread of a rank uses. Owned by its task too, so that it outlives a runner that gave up
// the rank.
struct GpuRanks {
  ~GpuRanks() {
    if (exchanges) exchanges->abort();  // runners wait for their kernels
  }

  std::vector<std::shared_ptr<const ModelShard>> shards;  // of ranks 1, 2, ..
  std::vector<std::shared_ptr<Device>> owned;             // devices
  std::vector<Device*> devices;                           // [world]
  std::unique_ptr<DeviceRanks> exchanges;
  RunCalls run_calls;
  std::vector<std::unique_ptr<Runner>> runners;  // [world]
  std::function<void(ShardId, int64_t)> before_step;
  std::function<void(ShardId)> before_draft;

  // A rank that goes on uses it. The others may have given the rank up meanwhile; the model of rank
  // 0 is the caller's.
  Runner& runner(ShardId id, bool eager) {
    exchanges->check();
    Runner& own = *runners[static_cast<size_t>(id.rank)];
    if (id.rank > 0) own.observe(eager ? &run_calls : nullptr);
    return own;
  }

  // What a rank does in a task: a failure ends the exchanges of all.
  template <class Body>
  void run(int rank, const Body& body) {
    try {
      make_current(*devices[static_cast<size_t>(rank)]);
      body();
    } catch (...) {
      exchanges->abort();
      throw;
    }
  }
};

// Copies on the streams of several ranks.
class Transfers final : public Transfer {
 public:
  void add(std::unique_ptr<Transfer> one) { all_.push_back(std::move(one)); }
  bool done() override {
    return std::ranges::all_of(all_, [](const auto& one) { return one->done(); });
  }
  void wait() override {
    for (const auto& one : all_) one->wait();
  }

 private:
  std::vector<std::unique_ptr<Transfer>> all_;
};

std::shared_ptr<GpuRanks> make_gpu_ranks(const Model& model, const RankOptions& options) {
  auto ranks = std::make_shared<GpuRanks>();
  ranks->shards.assign(model.others().begin(), model.others().end());
  ranks->owned.push_back(model.shared_device());
  for (const auto& shard : ranks->shards) ranks->owned.push_back(shard->shared_device());
  for (const auto& device : ranks->owned) ranks->devices.push_back(device.get());
  DSV4_CHECK(std::ranges::count(ranks->devices, nullptr) == 0, "ranks without a device, of {}",
             ranks->devices.size());
  ranks->exchanges =
      std::make_unique<DeviceRanks>(ranks->devices, kExchangeWindowBytes, options.limit);
  ranks->before_step = options.before_step;
  ranks->before_draft = options.before_draft;
  make_current(*ranks->devices.front());
  return ranks;
}

class DeviceRanksRunner final : public Runner {
 public:
  DeviceRanksRunner(const Model& model, const Context& context, const CacheLimits& limits,
                    const RankOptions& options)
      : ranks_(make_gpu_ranks(model, options)),
        team_(model.id().world, options.limit, awake_on_gpus(model.id().world)),
        memories_(memories()),
        caches_(pointers(), [this] { return team_.lost(); }),
        logits_(home(), home(), ranks_->exchanges.get()) {
    for (int rank = 0; rank < team_.world(); ++rank) {
      Context own = context;
      own.device = &device(rank);
      if (rank > 0) own.observer = nullptr;  // sees the calls of rank 0
      const ModelShard& shard = rank == 0 ? model : *ranks_->shards[static_cast<size_t>(rank) - 1];
      const VisitDevice visit(device(rank), home());
      ranks_->runners.push_back(make_device_runner(shard, own, limits, ranks_->exchanges.get()));
      own.device->wait();
    }
  }

  Memory& memory() override { return caches_; }
  Memory& logits_memory() override { return logits_; }
  const Scratch& scratch() const override { return first().scratch(); }
  Memory& staging() override { return first().staging(); }

  void forward(const ForwardBatch& batch, std::span<const LayerCache> caches,
               const TensorView& logits, const DrafterStreams& drafter) override {
    const auto plan = std::make_shared<const StepPlan>(steps_++, batch);
    auto of_rank = std::make_shared<std::vector<RankMemory>>();
    for (int rank = 0; rank < team_.world(); ++rank)
      of_rank->push_back(
          {caches_of_rank(caches, caches_, rank), streams_of_rank(drafter, caches_, rank)});
    run_all([plan, of_rank, logits, eager = eager()](GpuRanks& ranks, ShardId id) {
      if (ranks.before_step) ranks.before_step(id, plan->step());
      const RankMemory& own = (*of_rank)[static_cast<size_t>(id.rank)];
      ranks.runner(id, eager).forward(plan->batch(), own.caches, logits, own.streams);
    });
  }

  // Every rank waits for its drafts, which are those of all ranks.
  Drafted draft(const DraftChain& chain) override {
    const std::shared_ptr<const DraftPlans> plans = plans_of_ranks(chain, caches_);
    const auto drafted = std::make_shared<Drafted>();  // of rank 0
    run_all([plans, drafted, eager = eager()](GpuRanks& ranks, ShardId id) {
      if (ranks.before_draft) ranks.before_draft(id);
      Drafted own = ranks.runner(id, eager).draft((*plans)[static_cast<size_t>(id.rank)]->chain());
      ranks.exchanges->check();
      if (id.rank == 0) *drafted = std::move(own);
    });
    return *drafted;
  }

  std::vector<Sampled> sample(const ConstTensorView& logits, const SampleRows& rows) override {
    std::vector<Sampled> tokens;
    try {
      tokens = first().sample(logits, rows);
    } catch (const NotFinite&) {
      ranks_->exchanges->check();  // the logits of an exchange that ended early mean nothing
      throw;
    }
    ranks_->exchanges->check();
    return tokens;
  }

  void copy(std::span<const CopyPiece> pieces) override {
    for (int rank = team_.world() - 1; rank >= 0; --rank) {
      const VisitDevice visit(device(rank), home());
      runner(rank).copy(pieces_of(rank, pieces));
    }
  }
  std::unique_ptr<Transfer> start_copy(std::span<const CopyPiece> pieces) override {
    auto all = std::make_unique<Transfers>();
    for (int rank = team_.world() - 1; rank >= 0; --rank) {
      const std::vector<CopyPiece> own = pieces_of(rank, pieces);
      if (own.empty()) continue;
      const VisitDevice visit(device(rank), home());
      all->add(runner(rank).start_copy(own));
    }
    return all;
  }
  void wait() override {
    for (Device* device : ranks_->devices) device->wait();
    ranks_->exchanges->check();
  }
  std::vector<RankStats> rank_stats() override {
    std::vector<RankStats> all;
    if (team_.lost()) return all;
    for (int rank = 0; rank < team_.world(); ++rank) {
      const VisitDevice visit(device(rank), home());
      all.push_back(runner(rank).rank_stats().front());
    }
    return all;
  }
  void observe(Observer* observer) override {
    observed_ = observer != nullptr;
    first().observe(observer);
  }

 private:
  Runner& runner(int rank) const { return *ranks_->runners[static_cast<size_t>(rank)]; }
  Runner& first() const { return runner(0); }
  Device& device(int rank) const { return *ranks_->devices[static_cast<size_t>(rank)]; }
  Device& home() const { return device(0); }

  std::vector<MemoryOfRank> memories() const {
    std::vector<MemoryOfRank> all;
    for (Device* device : ranks_->devices) all.emplace_back(*device, home(), nullptr);
    return all;
  }
  std::vector<Memory*> pointers() {
    std::vector<Memory*> all;
    for (MemoryOfRank& memory : memories_) all.push_back(&memory);
    return all;
  }

  struct RankMemory {
    std::vector<LayerCache> caches;
    DrafterStreams streams;
  };

  // All ranks capture, or none does.
  bool eager() const { return observed_ || home().times() != nullptr; }

  // body(ranks, id) by the threads of all ranks.
  template <class Body>
  void run_all(Body body) {
    try {
      team_.run([ranks = ranks_, body](Communicator& self) {
        ranks->run(self.id().rank, [&] { body(*ranks, self.id()); });
      });
    } catch (...) {
      ranks_->exchanges->abort();  // of a rank that did not come back
      throw;
    }
  }

  // Pieces at the addresses of a rank. What is copied out of the caches comes from rank 0.
  std::vector<CopyPiece> pieces_of(int rank, std::span<const CopyPiece> pieces) const {
    std::vector<CopyPiece> own;
    for (const CopyPiece& piece : pieces) {
      std::byte* const to = caches_.at(rank, piece.to);
      if (to == nullptr && rank > 0) continue;
      const std::byte* const from = caches_.at(rank, piece.from);
      own.push_back(
          {to != nullptr ? to : piece.to, from != nullptr ? from : piece.from, piece.bytes});
    }
    return own;
  }

  std::shared_ptr<GpuRanks> ranks_;
  RankTeam team_;
  std::vector<MemoryOfRank> memories_;
  RankMemories caches_;
  MemoryOfRank logits_;
  int64_t steps_ = 0;
  bool observed_ = false;
};

}  // namespace

std::unique_ptr<Runner> make_device_ranks_runner(const Model& model, const Context& context,
                                                 const CacheLimits& limits,
                                                 const RankOptions& ranks) {
  return std::make_unique<DeviceRanksRunner>(model, context, limits, ranks);
}

}  // namespace dsv4
