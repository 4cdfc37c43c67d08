// The places of a forward step at which the ranks of a model exchange values, and the products on
// both sides of each (docs/spec/several-gpus.md 2.3):
//
//   embedding   rows of the table      -> all rows            -> streams
//   u           o wo_a^T, own groups   -> all columns         -> own columns of y = u wo_b^T
//   y           own columns            -> all columns         -> the next boundary
//   h           own columns of every token and expert         -> own columns of w2 h
//   y           own columns            -> all columns         -> the next boundary
//     or, with whole experts (ExpertsPlacement),
//   w2 h        rows of own experts    -> rows of all experts
//   h           of the shared expert, own columns             -> y, all of it on every rank
//   logits      own columns            -> all columns, on rank 0 alone; of guesses on every rank
//
// Every value is computed by its owner with the op of a step on one rank, and copied. Router,
// caches, indexer and hyper-connections run on all ranks with the same inputs, so that they agree
// bit for bit. step.ranks is set; the shapes of the rank's weights say what it owns.

#pragma once

#include "dsv4/model/step.h"
#include "dsv4/model/weights.h"

namespace dsv4 {

// table: the rank's rows; streams: [T, m, D]
void embed_of_ranks(const Step& step, const ConstTensorView& table, const TensorView& streams);

// As above, for a drafter: of ids that a device alone may know, without RankLists. out: [T, D]
void embed_rows_of_ranks(const Step& step, const ConstTensorView& table, const TensorView& out);

// o: [T, h of the rank, d]; y: [T, D]
void attention_out_of_ranks(const Step& step, const AttentionWeights& weights,
                            const ConstTensorView& o, const TensorView& y);

// As run_moe(). acc: [T, D] f32
void moe_of_ranks(const Step& step, const MoeWeights& weights, const HcBoundaryArgs& boundary,
                  const TensorView& acc);

// h: [n, D]; logits: [n, V] f32 on rank 0
void head_of_ranks(const Step& step, const WeightView& head, const ConstTensorView& h,
                   const TensorView& logits);

// Every rank draws guesses. The columns of their logits [n, V] that this rank computes, and the
// exchange after which it has all of them:
TensorView own_guess_logits(const Step& step, const TensorView& logits);
void gather_guess_logits(const Step& step, const TensorView& logits);

}  // namespace dsv4
