// Steps in host memory: of a whole model, or of one of its ranks.

#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "dsv4/comm/metered.h"
#include "dsv4/engine/draft_head.h"
#include "dsv4/engine/runner.h"

namespace dsv4 {

// A copy that has ended when it is started.
class FinishedTransfer final : public Transfer {
 public:
  bool done() override { return true; }
  void wait() override {}
};

class HostRunner final : public Runner {
 public:
  HostRunner(const Model& model, const Context& context, const CacheLimits& limits);

  Memory& memory() override { return host_memory(); }
  bool on_host() const override { return true; }
  const Scratch& scratch() const override { return scratch_; }
  // How a rank of several reaches the others, in the next steps.
  void join(Communicator& ranks) { ranks_.emplace(ranks, exchanges_); }
  void observe(Observer* observer) override { context_.observer = observer; }
  std::vector<RankStats> rank_stats() override;
  Memory& staging() override { return host_memory(); }
  void copy(std::span<const CopyPiece> pieces) override;
  std::unique_ptr<Transfer> start_copy(std::span<const CopyPiece> pieces) override;
  void forward(const ForwardBatch& batch, std::span<const LayerCache> caches,
               const TensorView& logits, const DrafterStreams& drafter) override;
  Drafted draft(const DraftChain& chain) override;
  std::vector<Sampled> sample(const ConstTensorView& logits, const SampleRows& rows) override;

 private:
  // Draws guess after guess into ids, after what `compute` does for its logits from the ids before.
  using Ids = std::vector<std::vector<int32_t>>;
  void draw_all(const DraftChain& chain, const std::function<void(size_t)>& compute, Ids& ids);
  void draft_by_passes(const DraftChain& chain, Ids& ids);
  void draft_by_block(const DraftChain& chain, Drafted& drafted);
  void end_drafts();
  Communicator* ranks() { return ranks_ ? &*ranks_ : nullptr; }

  const Model& model_;
  Context context_;
  Scratch scratch_;
  DraftHead draft_head_;
  ExchangeCounts exchanges_;
  std::optional<Metered> ranks_;  // none: it is alone
  RankStats stats_;
};

}  // namespace dsv4
