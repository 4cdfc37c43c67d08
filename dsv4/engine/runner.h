// Runs steps of the network on the host or on a device, wherever the model's weights are.
//
// The executor reserves pages and builds batches. A runner does what differs between host and
// device: where lists and temporaries are, how a step is launched, how a token is sampled.

#pragma once

#include <memory>
#include <span>

#include "dsv4/engine/cache_plan.h"
#include "dsv4/engine/sample_lists.h"
#include "dsv4/model/model.h"
#include "dsv4/tensor/copy_piece.h"

namespace dsv4 {

// Copies that run beside the steps. Ended before it is destroyed.
class Transfer {
 public:
  virtual ~Transfer() = default;
  virtual bool done() = 0;
  virtual void wait() = 0;
};

class Runner {
 public:
  virtual ~Runner() = default;

  virtual Memory& memory() = 0;  // for caches and logits
  virtual const Scratch& scratch() const = 0;
  // Runs the batch; on a device it only starts it. logits: [batch.logits_rows.size() or more, V]
  // f32. With the cache of a drafter, the tokens are entered (model/drafter.h).
  virtual void forward(const ForwardBatch& batch, std::span<const LayerCache> caches,
                       const TensorView& logits, const DrafterStreams& drafter) = 0;
  // A pass of the model's drafter (ModelShard::draft), on the host only.
  virtual void draft(const ForwardBatch& batch, const LayerCache& cache,
                     const ConstTensorView& before, const TensorView& streams,
                     const TensorView& logits) = 0;
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

// On context.device, or on the host when there is none.
std::unique_ptr<Runner> make_runner(const Model& model, const Context& context,
                                    const CacheLimits& limits);
std::unique_ptr<Runner> make_device_runner(const Model& model, const Context& context,
                                           const CacheLimits& limits);  // CUDA builds

}  // namespace dsv4
