// DSpark, the drafter of the later releases (docs/spec/dsv4.md 9.2): window-only layers, its
// stages, that guess a block of B tokens at once.
//
// Of a token at position t that the model has computed, a stage has a key of the window:
//
//   tap = concat over the layers that the config names: mean over the streams of a layer's output
//   x   = RMS(Lin8(tap; main_proj); main_norm)                          the same for all stages
//   key = RoPE(RMS(Lin8(x; wkv of the stage); kv_norm of the stage); t)
//
// The key depends on the tokens up to t and lies at the place of t. So a step enters its tokens
// (LayerTaps) without attention and experts of the stages, a prefix is continued from the window's
// pages alone, and the key of a token that is not accepted is overwritten.
//
// A block after n tokens is [y, noise, .., noise]: the newest token, at position n, and B - 1 times
// the id that stands for a token to be guessed (ModelShard::draft_block):
//
//   X_i      = embed[block i] in every stream, through the stages as through any layer; attention
//              of each token over the last W keys before the block and the keys of all of the block
//   h_i      = hc_head(X_i)                                             i = 0 .. B - 1
//   logits_i = head(RMS(h_i; norm))
//
// Guess i + 1 is drawn after guess i (guess_after; confidences of all of them at the end):
//
//   logits_i    += markov_w2 markov_w1[guess i]                         guess 0: y
//   confidence_i = w . concat(h_i, markov_w1[guess i])                  its sigmoid: that it holds
//
// On several ranks the stages are cut as layers are; main_proj and the markov head are whole.
//
// The keys of a block are in pages of the sequence's slot, beside those of the page tables: they
// serve one pass.

#pragma once

#include <span>

#include "dsv4/model/attention.h"
#include "dsv4/model/batch.h"
#include "dsv4/model/step.h"
#include "dsv4/model/weights.h"

namespace dsv4 {

// What the stages see of a step of the model.
class LayerTaps {
 public:
  explicit LayerTaps(Step& step);
  // streams: after this layer
  void take(int64_t layer, const TensorView& streams);
  // Writes the keys of the step's tokens. caches: of the stages
  void enter(const DrafterWeights& weights, const RopeTables& tables,
             std::span<const LayerCache> caches);

 private:
  Step& step_;
  TensorView taps_;  // [T, taps D]
};

}  // namespace dsv4
