// The residual streams of a step, and what passes between them and the blocks of the network
// (docs/spec/dsv4.md 8).

#pragma once

#include <utility>

#include "dsv4/model/ranks.h"
#include "dsv4/model/step.h"
#include "dsv4/ops/model/hc_boundary/hc_boundary.h"
#include "dsv4/ops/parts/mhc/mhc.h"

namespace dsv4 {

class HyperStreams {
 public:
  explicit HyperStreams(Step& step)
      : HyperStreams(step, step.activation(
                               {step.num_tokens, step.config.hc_mult, step.config.hidden_size})) {}
  // In the caller's memory, [T, m, D] in the dtype of activations.
  HyperStreams(Step& step, const TensorView& streams)
      : step_(step),
        streams_(streams),
        x_(step.activation({step.num_tokens, step.config.hidden_size})),
        outputs_(exchanged_scratch(step, SymmetricHalf::kOutput)),
        scope_(outputs_),
        sum_(outputs_.take(DType::kF32, {step.num_tokens, step.config.hidden_size})) {
    const int64_t t = step.num_tokens, m = step.config.hc_mult;
    for (Gates& gates : gates_) {
      gates = {.post = step.scratch.take(DType::kF32, {t, m}),
               .comb = step.scratch.take(DType::kF32, {t, m, m})};
    }
  }

  const TensorView& streams() const { return streams_; }
  // Where the next block writes: attention in the dtype of activations, the experts their f32 sum.
  // Both use the same bytes, one after the other.
  TensorView output(DType dtype) {
    y_ = {TensorMeta::contiguous(dtype, {sum_.dim(0), sum_.dim(1)}), sum_.data};
    return y_;
  }

  // From what the block before wrote, if there is one, to the input of the next block.
  HcBoundaryArgs boundary(const HyperWeights& hc, const ConstTensorView& norm) {
    std::swap(gates_[0], gates_[1]);
    HcBoundaryArgs args = boundary_args(hc, norm, y_);
    if (y_.rank > 0 && step_.outputs == Outputs::kStay) args.y_homes = homes_of_output(step_);
    if (y_.rank > 0 && step_.outputs == Outputs::kByBoundary)
      args.y_words = words_of_output(step_, y_);
    return args;
  }

  // How ranks bring outputs of blocks like this one to each other, for as long as this lives: as
  // the boundaries between blocks allow.
  void choose_outputs(const LayerWeights& layer) {
    step_.outputs = Outputs::kGathered;
    if (!outputs_need_no_gather(step_, layer.moe)) return;
    HcBoundaryArgs args = boundary_args(layer.hc_attn, layer.attn_norm, sum_);
    if (!step_.token_ends.empty()) {
      args.y_homes = homes_of_output(step_);
      if (accepts(hc_boundary, step_.context, args)) step_.outputs = Outputs::kStay;
      return;
    }
    args.y_words = words_of_output(step_, sum_.slice(0, 0, 0));
    if (!args.y_words.empty() && accepts(hc_boundary, step_.context, args))
      step_.outputs = Outputs::kByBoundary;
  }

  // Takes the output of the last block, which no other follows.
  void finish() {
    // With kStay the exchange before brought nothing into this half: no kernel reads others'
    // columns there.
    if (step_.outputs != Outputs::kGathered) gather_output(step_, y_);
    hc_post(step_.context,
            {.y = y_, .post = gates_[0].post, .comb = gates_[0].comb, .streams = streams_});
  }

 private:
  HcBoundaryArgs boundary_args(const HyperWeights& hc, const ConstTensorView& norm,
                               const ConstTensorView& y) const {
    const ModelConfig& m = step_.config;
    return {.y = y,
            .y_post = gates_[1].post,
            .y_comb = gates_[1].comb,
            .hc = hc,
            .norm = norm,
            .norm_eps = m.norm_eps,
            .hc_eps = m.hc_eps,
            .sinkhorn_iters = m.sinkhorn_iters,
            .streams = streams_,
            .x = x_,
            .post = gates_[0].post,
            .comb = gates_[0].comb};
  }

  struct Gates {
    TensorView post, comb;  // [T, m], [T, m, m] f32
  };

  Step& step_;
  TensorView streams_;  // [T, m, D]
  TensorView x_;        // [T, D]
  Scratch& outputs_;    // where sum_ is taken, with
  Scratch::Scope scope_;
  TensorView sum_;  // [T, D] f32
  TensorView y_;    // [T, D] in sum_, of the block before; rank 0: none
  Gates gates_[2];  // of the latest boundary; of the one before
};

}  // namespace dsv4
