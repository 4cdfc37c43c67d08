// Runs steps of the network on the host or on a device, wherever the model's weights are.
//
// The executor reserves pages and builds batches. A runner does what differs between host and
// device: where lists and temporaries are, how a step is launched, how a token is sampled.

#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "dsv4/engine/cache_plan.h"
#include "dsv4/engine/draft_buffers.h"
#include "dsv4/engine/rank_stats.h"
#include "dsv4/engine/sample_lists.h"
#include "dsv4/model/model.h"
#include "dsv4/tensor/copy_piece.h"

namespace dsv4 {

class DeviceRanks;

// Copies that run beside the steps. Ended before it is destroyed.
class Transfer {
 public:
  virtual ~Transfer() = default;
  virtual bool done() = 0;
  virtual void wait() = 0;
};

// The guesses of the model's drafter for several sequences. Guess i of every sequence that wants so
// many is drawn after guess i - 1. Sequences that want more come first.
//
//   MTP (model/mtp.h)        a pass for each guess: a token of each sequence, the newest one in the
//                            first pass, in the others a 0 that stands for the guess before.
//                            `before` are the slots in the first pass, then the rows
//   DSpark (model/dspark.h)  one pass for all: a block of each sequence
//
// Each rank of several runs the whole chain and draws every guess from equal logits, so ids are not
// exchanged.
struct DraftChain {
  DrafterKind kind{};
  std::vector<int64_t> sequences;  // [guess] that want it
  std::vector<ForwardBatch> passes;
  std::span<const LayerCache> caches;  // of the drafter
  ConstTensorView pending;             // MTP: [slots, m, D] X of the newest cached tokens
  DraftViews buffers;
  SampleRows
      sampling;  // of the first guesses; guess i has the random numbers steps + i and no mask

  size_t guesses() const { return sequences.size(); }
  bool block() const { return kind == DrafterKind::kDspark; }
  // The streams that a pass of MTP takes, and where it writes its own.
  ConstTensorView before(size_t pass) const {
    return pass == 0 ? pending : ConstTensorView(buffers.chain[(pass - 1) % 2]);
  }
  TensorView after(size_t pass, int64_t rows) const {
    return buffers.chain[pass % 2].slice(0, 0, rows);
  }
  // What `rows` sequences, with those of padding, have of all guesses of DSpark, and of one.
  BlockGuesses block_rows(int64_t rows) const {
    return block_rows().rows(0, rows * static_cast<int64_t>(guesses()));
  }
  BlockGuesses block_rows(size_t guess, int64_t rows) const {
    const int64_t begin = rows * static_cast<int64_t>(guess);
    return block_rows().rows(begin, begin + rows);
  }
  // Logits of a guess, [rows, V]
  TensorView logits(size_t guess, int64_t rows) const {
    return block() ? block_rows(guess, rows).logits : buffers.logits.slice(0, 0, rows);
  }
  // The sampler's rows of a guess; `steps` has its random numbers.
  SampleRows rows(size_t guess, std::vector<uint64_t>& steps) const;

 private:
  BlockGuesses block_rows() const { return {buffers.hidden, buffers.logits, buffers.before}; }
};

// [guess][sequence]
struct Drafted {
  // -1, and whatever in later guesses, where the drafter has computed something that is not a
  // number.
  std::vector<std::vector<int32_t>> ids;
  // How likely a guess is to hold if those before it do, by the drafter itself; empty: it does not
  // say.
  std::vector<std::vector<float>> chances;
};

// The chance that a confidence of ModelShard::confidences() stands for; NaN stays.
float chance_of(float confidence);
// Whose caches come after those of the model's layers.
DrafterKind drafter_of(const Model& model, std::span<const LayerCache> caches);

class Runner {
 public:
  virtual ~Runner() = default;

  virtual Memory& memory() = 0;                         // for caches
  virtual Memory& logits_memory() { return memory(); }  // for logits
  virtual bool on_host() const { return false; }        // both are host memory
  virtual const Scratch& scratch() const = 0;
  // Runs the batch; on a device it only starts it. logits: [batch.logits_rows.size() or more, V]
  // f32. With the caches of a drafter, the tokens are entered for it. drafter: of MTP
  virtual void forward(const ForwardBatch& batch, std::span<const LayerCache> caches,
                       const TensorView& logits, const DrafterStreams& drafter) = 0;
  // Waits for the guesses.
  virtual Drafted draft(const DraftChain& chain) = 0;
  // Samples one token per row and waits for it. Throws kInvalidArgument when a row has no finite
  // logit. logits: [b, V] f32; rows: b of them, at most limits.logits_rows() on a device
  virtual std::vector<Sampled> sample(const ConstTensorView& logits, const SampleRows& rows) = 0;
  // Host memory that copy() reaches at full speed: page-locked where memory() is a device's.
  virtual Memory& staging() = 0;
  // Copies inside and between memory() and staging(), after the work that was started before and
  // before what is started next. The pieces may be in any order and do not overlap.
  virtual void copy(std::span<const CopyPiece> pieces) = 0;
  // As copy(), but steps that are started next do not wait for it: they may read the pieces and
  // write neither end. On a device it has a stream of its own.
  virtual std::unique_ptr<Transfer> start_copy(std::span<const CopyPiece> pieces) = 0;
  // Waits until all started work is done.
  virtual void wait() {}
  // One for each rank, in order, without the caches. Waits for the device, and copies from it.
  virtual std::vector<RankStats> rank_stats() { return {}; }
  // Throws when a rank that is a process has ended.
  virtual void check_ranks() {}
  // Sees every call of the following steps, none of which is captured; null: calls run.
  virtual void observe(Observer* observer) = 0;
};

// How the ranks of a model that has several run (ModelShard::others).
struct RankOptions {
  // How long a rank is waited for that the others have to wait for.
  std::chrono::milliseconds limit{10000};
  // Called by every rank before each of its steps, and before the drafts of each round; for tests.
  std::function<void(ShardId, int64_t step)> before_step;
  std::function<void(ShardId)> before_draft;
  // For benchmarks, on a GPU: one rank without its peers, whose exchanges are copies of its own
  // values (comm/local_copies.h). What it computes means nothing.
  bool alone = false;
};

// On context.device and those of the other ranks, or on the host when there is none.
std::unique_ptr<Runner> make_runner(const Model& model, const Context& context,
                                    const CacheLimits& limits, const RankOptions& ranks = {});
// CUDA builds. ranks: of a rank of several, what it exchanges values through; its steps are
// enqueued in DeviceRanks::step(). alone: as RankOptions; without either, the model is whole.
std::unique_ptr<Runner> make_device_runner(const Model& model, const Context& context,
                                           const CacheLimits& limits, DeviceRanks* ranks = nullptr,
                                           bool alone = false);
std::unique_ptr<Runner> make_device_ranks_runner(const Model& model, const Context& context,
                                                 const CacheLimits& limits,
                                                 const RankOptions& ranks);
// Ranks that are processes: of rank 0 (follow_rank.h is for the others).
std::unique_ptr<Runner> make_processes_runner(const Model& model, const Context& context,
                                              const CacheLimits& limits, const RankOptions& ranks);
std::unique_ptr<Runner> make_ranks_runner(const Model& model, const Context& context,
                                          const CacheLimits& limits, const RankOptions& ranks);

}  // namespace dsv4
