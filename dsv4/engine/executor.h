// Runs tokens of several sequences through the model: reserves pages, builds the batch, commits.

#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "dsv4/engine/draft_buffers.h"
#include "dsv4/engine/expert_trace.h"
#include "dsv4/engine/model_cache.h"
#include "dsv4/engine/prefix_cache.h"
#include "dsv4/engine/runner.h"
#include "dsv4/model/model.h"

namespace dsv4 {

struct Work {
  SeqId seq{};
  std::span<const int32_t> ids;  // the next tokens of the sequence
  enum class Logits { kNone, kLast, kAll } logits = Logits::kNone;
  // start() calls back when the sequence has so many of `ids`, fewer than a checkpoint_step()
  // before its end; 0: not.
  int64_t checkpoint = 0;
  // The caller commits the tokens that it keeps, then truncates the sequence to its length.
  bool drafted = false;
};

class Executor {
 public:
  // Runs on the device that holds the model, or on all of its ranks. Allocates the cache and the
  // workspace for these limits (cache_plan.h, workspace.h).
  Executor(const Model& model, const Context& context, const CacheLimits& limits,
           const RankOptions& ranks = {});

  PageTables& cache() { return cache_.tables(); }
  const PageTables& cache() const { return cache_.tables(); }
  std::span<const LayerCache> layers() const { return cache_.layers(); }
  Runner& runner() { return *runner_; }
  const CacheLimits& limits() const { return cache_.limits(); }
  const Model& model() const { return model_; }
  int64_t vocab() const { return model_.config().vocab_size; }
  PrefixCache* prefixes() { return prefixes_.get(); }  // null: limits().checkpoints is 0
  const PrefixCache* prefixes() const { return prefixes_.get(); }
  UnitStore* units() { return prefixes_ ? prefixes_->units() : nullptr; }  // null: no tiers
  const UnitStore* units() const { return prefixes_ ? std::as_const(*prefixes_).units() : nullptr; }
  const CachePlan& cache_plan() const { return cache_.plan(); }
  const Scratch& scratch() const { return runner_->scratch(); }
  std::vector<RankStats> rank_stats() const;
  void check_ranks() { runner_->check_ranks(); }

  // Computes the tokens and appends them to the caches, except those of drafted work. On a device
  // the computation may still run when this returns. Throws kResource when the cache has no room
  // for all of them: then no token was computed, and sequences keep the pages that were reserved
  // for them. A sequence may appear once. on_checkpoint(i) of work[i].checkpoint may store the
  // sequence as it is then (PrefixCache::store).
  using OnCheckpoint = std::function<void(size_t)>;
  void start(std::span<const Work> work, const OnCheckpoint& on_checkpoint = {});
  // Commits the next token of the last start()'s drafted work of this sequence.
  void commit_one(SeqId seq);
  // With MTP in limits(): copies the streams of the newest committed tokens to where the cache
  // keeps them. To be called after commit_one(), before a prefix is stored or a sequence is closed.
  void keep_streams();

  // With limits().drafter: what the drafter guesses after the newest token of each sequence. Room
  // for that token and the guesses has been reserved; rows with more guesses come first.
  struct DraftRow {
    SeqId seq{};
    int32_t id = 0;    // the newest token, which is not committed
    int64_t most = 0;  // guesses, at least 1
  };
  struct Guesses {
    std::vector<int32_t> ids;
    std::vector<float> chances;  // of each, or empty (Drafted::chances)
  };
  // sampling: of the rows' first guesses; a further one has the next random number, the same terms
  // and no mask. A row has fewer guesses where the drafter computes something that is not a number.
  std::vector<Guesses> draft(std::span<const DraftRow> rows, const SampleRows& sampling);
  // In the runner's memory: those of its last guesses (DraftBuffers::logits).
  ConstTensorView draft_logits() const { return drafting_->logits(); }

  // One token for each row of logits of the last start(), in the order of its work. Throws
  // NotFinite when a logit is not a number.
  std::vector<Sampled> sample(const SampleRows& rows);
  void wait() { runner_->wait(); }
  void observe(Observer* observer) { runner_->observe(observer); }  // runner.h
  // Observes the following steps, on the host; null: no longer.
  void trace_experts(ExpertTrace* trace);

  // start(), and the logits of the wanted tokens on the host: [rows, V] f32, valid until the next
  // call. Throws NotFinite when one of them is not a number.
  ConstTensorView run(std::span<const Work> work);

 private:
  // Replaces the log-probabilities of the rows that want those of the draw.
  void process_logprobs(const SampleRows& rows, std::vector<Sampled>& tokens);
  ForwardBatch make_batch(std::span<const Work> work) const;
  void commit(const Work& work, int64_t first, const OnCheckpoint& on_checkpoint, size_t index);
  void keep_later(SeqId seq, int64_t row);
  std::vector<ForwardBatch> draft_passes(std::span<const DraftRow> rows) const;
  ForwardBatch draft_block(std::span<const DraftRow> rows) const;
  // Streams of a step's tokens are wanted.
  bool keeps_streams() const { return cache_.limits().drafter == DrafterKind::kMtp; }
  ConstTensorView logits() const { return logits_.view().slice(0, 0, rows_); }

  const Model& model_;
  const int64_t cache_bytes_;  // of each rank
  std::unique_ptr<Runner> runner_;
  ModelCache cache_;
  std::unique_ptr<PrefixCache> prefixes_;
  Buffer logits_;       // [>= rows, V] f32, in the runner's memory
  Buffer host_logits_;  // a copy, where that memory is not the host's
  int64_t rows_ = 0;    // of the last start()
  ExpertTrace* trace_ = nullptr;
  std::optional<DraftBuffers> drafting_;  // with a drafter
  std::map<SeqId, int64_t> drafted_;      // of the last start(): the row of the next token
  std::map<int64_t, int64_t> kept_;       // by state slot, the row that keep_streams() copies
};

}  // namespace dsv4
