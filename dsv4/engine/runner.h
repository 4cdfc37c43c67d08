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

// The guesses of the model's drafter for several sequences (model/drafter.h), in passes: pass i
// guesses token i of every sequence that wants so many. Sequences that want more come first.
struct DraftChain {
  // A token of each sequence: the newest one in the first pass, in the others a 0 that stands for
  // the guess of the pass before. `before` are the slots in the first pass, then the rows.
  std::vector<ForwardBatch> passes;
  LayerCache cache;
  ConstTensorView pending;  // [slots, m, D] X of the newest cached tokens
  // [max_sequences, m, D]: of a pass and of the one before; temporary
  TensorView streams[2];
  TensorView logits;    // [max_sequences, V] f32; temporary
  SampleRows sampling;  // of the first pass; pass i has the random numbers steps + i and no mask

  // The streams that a pass takes, and where it writes its own.
  ConstTensorView before(size_t pass) const {
    return pass == 0 ? pending : ConstTensorView(streams[(pass - 1) % 2]);
  }
  TensorView after(size_t pass, int64_t rows) const { return streams[pass % 2].slice(0, 0, rows); }
  // The sampler's rows of a pass; `steps` has its random numbers.
  SampleRows rows(size_t pass, std::vector<uint64_t>& steps) const;
};

class Runner {
 public:
  virtual ~Runner() = default;

  virtual Memory& memory() = 0;                         // for caches
  virtual Memory& logits_memory() { return memory(); }  // for logits
  virtual bool on_host() const { return false; }        // both are host memory
  virtual const Scratch& scratch() const = 0;
  // Runs the batch; on a device it only starts it. logits: [batch.logits_rows.size() or more, V]
  // f32. With the cache of a drafter, the tokens are entered (model/drafter.h).
  virtual void forward(const ForwardBatch& batch, std::span<const LayerCache> caches,
                       const TensorView& logits, const DrafterStreams& drafter) = 0;
  // The ids of each pass, and waits for them. -1, and whatever in later passes, where the drafter
  // has computed something that is not a number.
  virtual std::vector<std::vector<int32_t>> draft(const DraftChain& chain) = 0;
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
  // Sees every call of the following steps, none of which is captured; null: calls run.
  virtual void observe(Observer* observer) = 0;
};

// How the ranks of a model that has several run (ModelShard::others).
struct RankOptions {
  // How long a rank is waited for that the others have to wait for.
  std::chrono::milliseconds limit{10000};
  // Called by every rank before each of its steps; for tests.
  std::function<void(ShardId, int64_t step)> before_step;
};

// On context.device and those of the other ranks, or on the host when there is none.
std::unique_ptr<Runner> make_runner(const Model& model, const Context& context,
                                    const CacheLimits& limits, const RankOptions& ranks = {});
// CUDA builds. ranks: of a rank of several, what it exchanges values through; its steps are
// enqueued in DeviceRanks::step(). Without, a part of a model runs with copies of its own values in
// the place of exchanges: for benchmarks.
std::unique_ptr<Runner> make_device_runner(const Model& model, const Context& context,
                                           const CacheLimits& limits, DeviceRanks* ranks = nullptr);
std::unique_ptr<Runner> make_device_ranks_runner(const Model& model, const Context& context,
                                                 const CacheLimits& limits,
                                                 const RankOptions& ranks);
std::unique_ptr<Runner> make_ranks_runner(const Model& model, const Context& context,
                                          const CacheLimits& limits, const RankOptions& ranks);

}  // namespace dsv4
