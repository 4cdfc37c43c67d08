// Steps of a model whose ranks are processes (docs/adr/0037), as rank 0 runs them: it gives the
// others each step and runs its own part; sampling is here. What is copied into the caches is
// copied on every rank, as in ranks_runner.cc; follow_rank.cc is the other end.

#include <omp.h>

#include <algorithm>
#include <optional>

#include "dsv4/base/error.h"
#include "dsv4/base/not_finite.h"
#include "dsv4/comm/threads.h"
#include "dsv4/engine/host_runner.h"
#include "dsv4/engine/rank_messages.h"
#include "dsv4/engine/rank_mirror.h"

namespace dsv4 {
namespace {

constexpr size_t kMostCopied = size_t{64} << 20;  // bytes of a message

class ProcessesRunner final : public Runner {
 public:
  ProcessesRunner(const Model& model, const Context& context, const CacheLimits& limits,
                  const RankOptions& options)
      : group_(*model.processes()),
        options_(options),
        threads_(std::max(1, omp_get_max_threads() / model.id().world)),
        first_(model, context, limits),
        caches_(group_, first_.memory()) {
    group_.set_limit(options.limit);
    first_.join(&group_.exchanges());
    MessageWriter setup;
    setup.put(limits).put(int64_t{options.limit.count()});
    put_context(setup, context);
    group_.tell(kind_of(RankMessage::kRunner), setup.bytes());
  }

  Memory& memory() override { return caches_; }
  Memory& logits_memory() override { return first_.memory(); }
  bool on_host() const override { return true; }
  const Scratch& scratch() const override { return first_.scratch(); }
  Memory& staging() override { return first_.staging(); }
  void observe(Observer* observer) override { first_.observe(observer); }
  void check_ranks() override { group_.check(); }

  void forward(const ForwardBatch& batch, std::span<const LayerCache> caches,
               const TensorView& logits, const DrafterStreams& drafter) override {
    DSV4_CHECK(drafter.streams.rank == 0, "{} ranks enter no tokens for a drafter",
               group_.id().world);
    guarded([&] {
      send_caches(caches);
      const StepPlan plan(steps_++, batch);
      MessageWriter message;
      put_plan(message, plan);
      group_.tell(kind_of(RankMessage::kStep), message.bytes());
      if (options_.before_step) options_.before_step(group_.id(), plan.step());
      const int threads = omp_get_max_threads();
      omp_set_num_threads(threads_);
      first_.forward(batch, caches, logits, {});
      omp_set_num_threads(threads);
      answers("end of the step");
    });
  }

  Drafted draft(const DraftChain&) override {
    fail(ErrorCode::kUnsupported, "drafters do not run on {} ranks yet", group_.id().world);
  }
  std::vector<Sampled> sample(const ConstTensorView& logits, const SampleRows& rows) override {
    return first_.sample(logits, rows);
  }

  void copy(std::span<const CopyPiece> pieces) override {
    guarded([&] {
      std::optional<MessageWriter> message;
      for (const CopyPiece& piece : pieces) {
        if (!caches_.holds(piece.to)) continue;  // out of the caches: from rank 0
        const bool inside = caches_.holds(piece.from);
        if (!message) message.emplace();
        message->put(piece.to).put(piece.bytes).put(inside ? piece.from : nullptr);
        if (!inside) message->raw(piece.from, static_cast<size_t>(piece.bytes));
        if (message->bytes().size() < kMostCopied) continue;
        group_.tell(kind_of(RankMessage::kCopy), message->bytes());
        message.reset();
      }
      if (message) group_.tell(kind_of(RankMessage::kCopy), message->bytes());
      first_.copy(pieces);
    });
  }
  std::unique_ptr<Transfer> start_copy(std::span<const CopyPiece> pieces) override {
    copy(pieces);
    return std::make_unique<FinishedTransfer>();
  }

  std::vector<RankStats> rank_stats() override {
    std::vector<RankStats> all = first_.rank_stats();
    group_.tell(kind_of(RankMessage::kStats), {});
    for (const Bytes& bytes : answers("numbers of a rank"))
      all.push_back(MessageReader(bytes).get<RankStats>());
    return all;
  }

 private:
  // One from each other rank.
  std::vector<Bytes> answers(const char* doing) {
    std::vector<Bytes> all;
    for (int rank = 1; rank < group_.id().world; ++rank)
      all.push_back(group_.answer(rank, kind_of(RankMessage::kDone), doing));
    return all;
  }

  void send_caches(std::span<const LayerCache> caches) {
    MessageWriter message;
    put_caches(message, caches);
    if (message.bytes() == sent_caches_) return;
    group_.tell(kind_of(RankMessage::kCaches), message.bytes());
    sent_caches_ = message.bytes();
  }

  // A failure of this rank, or the first of another, ends all of them.
  template <class Body>
  void guarded(const Body& body) {
    try {
      body();
    } catch (const RanksStopped& stopped) {
      group_.abort(stopped.what());
      throw;
    } catch (const NotFinite& error) {  // callers catch its type
      group_.abort(error.what());
      throw;
    } catch (const Error& error) {
      const std::string line = fmt::format("rank 0: {}", error.what());
      group_.abort(line);
      throw Error(error.code(), line);
    }
  }

  RankProcesses& group_;
  const RankOptions options_;
  const int threads_;
  HostRunner first_;
  MirroredMemory caches_;
  Bytes sent_caches_;
  int64_t steps_ = 0;
};

}  // namespace

std::unique_ptr<Runner> make_processes_runner(const Model& model, const Context& context,
                                              const CacheLimits& limits, const RankOptions& ranks) {
  DSV4_CHECK(context.device == nullptr && model.id().rank == 0,
             "ranks that are processes compute on the CPU; rank {}", model.id().rank);
  return std::make_unique<ProcessesRunner>(model, context, limits, ranks);
}

}  // namespace dsv4
