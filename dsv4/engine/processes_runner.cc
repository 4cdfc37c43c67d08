// Steps of a model whose ranks are processes (docs/adr/0037), as rank 0 runs them: it gives the
// others each step and runs its own part, on the host or on a GPU; sampling is here. What is copied
// into the caches is copied on every rank, as in ranks_runner.cc; follow_rank.cc is the other end.
//
// No rank answers a step. On a GPU it is only enqueued on all ranks. Whether all its exchanges had
// their values is known after a wait, so everything that waits for rank 0 asks then.

#include <algorithm>
#include <optional>

#include "dsv4/base/error.h"
#include "dsv4/base/not_finite.h"
#include "dsv4/engine/process_rank.h"
#include "dsv4/engine/rank_messages.h"
#include "dsv4/engine/rank_mirror.h"
#if DSV4_CUDA
#include "dsv4/device/device.h"
#endif

namespace dsv4 {
namespace {

constexpr size_t kMostCopied = size_t{64} << 20;  // bytes of a message

// A GPU fails of what a process that ends takes away, before its socket closes.
std::chrono::milliseconds patience(const Device* device) {
  return std::chrono::milliseconds(device == nullptr ? 0 : 3000);
}

class ProcessesRunner final : public Runner {
 public:
  ProcessesRunner(const Model& model, const Context& context, const CacheLimits& limits,
                  const RankOptions& options)
      : group_(*model.processes()),
        options_(options),
        device_(context.device),
        own_(announced(model, context, limits), context, limits, options.limit),
        results_(first().memory(),
                 [this](const std::function<void()>& read) {
                   guarded([&] {
                     read();
                     own_.check();
                   });
                 }),
        caches_(group_, results_) {}

  Memory& memory() override { return caches_; }
  Memory& logits_memory() override { return results_; }
  bool on_host() const override { return device_ == nullptr; }
  const Scratch& scratch() const override { return first().scratch(); }
  Memory& staging() override { return first().staging(); }
  void observe(Observer* observer) override {
    observed_ = observer != nullptr;
    first().observe(observer);
  }
  void check_ranks() override { own_.check(); }
  void wait() override {
    guarded([&] {
      first().wait();
      own_.check();
    });
  }

  void forward(const ForwardBatch& batch, std::span<const LayerCache> caches,
               const TensorView& logits, const DrafterStreams& drafter) override {
    guarded([&] {
      send_caches(caches);
      const StepPlan plan(steps_++, batch);
      MessageWriter message;
      put_plan(message, plan, {.eager = eager(), .logits_rows = logits.dim(0), .drafter = drafter});
      group_.tell(kind_of(RankMessage::kStep), message.bytes());
      if (options_.before_step) options_.before_step(group_.id(), plan.step());
      own_.run([&](Runner& runner) { runner.forward(batch, caches, logits, drafter); });
    });
  }

  Drafted draft(const DraftChain& chain) override {
    Drafted drafted;
    guarded([&] {
      MessageWriter message;
      put_draft(message, chain, eager());
      group_.tell(kind_of(RankMessage::kDraft), message.bytes());
      if (options_.before_draft) options_.before_draft(group_.id());
      own_.run([&](Runner& runner) { drafted = runner.draft(chain); });
      own_.check();
    });
    return drafted;
  }
  std::vector<Sampled> sample(const ConstTensorView& logits, const SampleRows& rows) override {
    std::vector<Sampled> tokens;
    try {
      tokens = first().sample(logits, rows);
    } catch (const NotFinite&) {
      check();  // the logits of an exchange that ended early mean nothing
      throw;
    } catch (const std::exception&) {
      if (on_host()) throw;
      guarded([] { throw; });
    }
    check();
    return tokens;
  }

  void copy(std::span<const CopyPiece> pieces) override {
    guarded([&] {
      tell_copies(pieces);
      first().copy(pieces);
    });
  }
  std::unique_ptr<Transfer> start_copy(std::span<const CopyPiece> pieces) override {
    std::unique_ptr<Transfer> own;
    guarded([&] {
      tell_copies(pieces);
      own = first().start_copy(pieces);
    });
    return own;
  }

  std::vector<RankStats> rank_stats() override {
    std::vector<RankStats> all;
    guarded([&] {
      group_.tell(kind_of(RankMessage::kStats), {});
      all = first().rank_stats();
      for (int rank = 1; rank < group_.id().world; ++rank) {
        const Bytes bytes = group_.answer(rank, kind_of(RankMessage::kDone), "numbers of a rank");
        all.push_back(MessageReader(bytes).get<RankStats>());
      }
    });
    return all;
  }

 private:
  Runner& first() { return own_.runner(); }
  const Runner& first() const { return own_.runner(); }
  void check() {
    guarded([&] { own_.check(); });
  }
  // The other ranks make their runners while this rank makes its own.
  const Model& announced(const Model& model, const Context& context, const CacheLimits& limits) {
    MessageWriter setup;
    setup.put(limits).put(int64_t{options_.limit.count()});
    put_context(setup, context);
    group_.tell(kind_of(RankMessage::kRunner), setup.bytes());
    return model;
  }

  // All ranks capture, or none does.
  bool eager() const {
#if DSV4_CUDA
    if (device_ != nullptr && device_->times() != nullptr) return true;
#endif
    return observed_;
  }

  // What is copied into the caches from elsewhere goes along; out of them, it comes from rank 0.
  void tell_copies(std::span<const CopyPiece> pieces) {
    std::optional<MessageWriter> message;
    for (const CopyPiece& piece : pieces) {
      if (!caches_.holds(piece.to)) continue;
      const bool inside = caches_.holds(piece.from);
      if (!message) message.emplace();
      message->put(piece.to).put(piece.bytes).put(inside ? piece.from : nullptr);
      if (!inside) message->raw(piece.from, static_cast<size_t>(piece.bytes));
      if (message->bytes().size() < kMostCopied) continue;
      group_.tell(kind_of(RankMessage::kCopy), message->bytes());
      message.reset();
    }
    if (message) group_.tell(kind_of(RankMessage::kCopy), message->bytes());
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
    } catch (const std::exception&) {
      group_.stop_all(patience(device_));
    }
  }

  RankProcesses& group_;
  const RankOptions options_;
  Device* const device_;
  ProcessRank own_;
  CheckedMemory results_;
  MirroredMemory caches_;
  Bytes sent_caches_;
  int64_t steps_ = 0;
  bool observed_ = false;
};

}  // namespace

std::unique_ptr<Runner> make_processes_runner(const Model& model, const Context& context,
                                              const CacheLimits& limits, const RankOptions& ranks) {
  DSV4_CHECK(model.id().rank == 0, "rank {} follows rank 0", model.id().rank);
  try {
    return std::make_unique<ProcessesRunner>(model, context, limits, ranks);
  } catch (const std::exception&) {  // the others make theirs, and may wait for this one
    model.processes()->stop_all(patience(context.device));
  }
}

}  // namespace dsv4
