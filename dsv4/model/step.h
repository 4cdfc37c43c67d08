// What every block of the network shares during one forward step: the batch as tensors, the lists
// of cache rows that depend on positions only (so every layer uses the same), scratch memory and
// mode.

#pragma once

#include "dsv4/model/batch.h"
#include "dsv4/model/config.h"
#include "dsv4/ops/op.h"
#include "dsv4/tensor/scratch.h"

namespace dsv4 {

// Compressed entries of one ratio, as this batch closes and sees them (spec 4.3: a query at t sees
// entry w iff w < floor((t + 1) / r)).
struct EntryLists {
  int ratio = 0;
  ConstTensorView closed_rows;       // [n] I32 cache rows of the entries that close in this step
  ConstTensorView closed_positions;  // [n] I32 w * r, where RoPE places an entry
  ConstTensorView visible;           // [T] I32
  ConstTensorView pages;             // [runs, max_pages] I32
  ConstTensorView all_rows;  // [T, max_visible] I32, -1 padded; empty where the indexer chooses
  int64_t max_visible = 0;
};

struct Step {
  const Context& context;
  const ModelConfig& config;
  const ForwardBatch& batch;
  Scratch& scratch;
  DType act;  // activations: BF16 under official numerics, F32 under exact

  int64_t num_tokens = 0;       // T
  ConstTensorView ids;          // [T] I32
  ConstTensorView positions;    // [T] I32
  ConstTensorView sequence;     // [T] I32: index of the token's run
  ConstTensorView cu_tokens;    // [runs + 1] I32
  ConstTensorView start;        // [runs] I32: position of each run's first token
  ConstTensorView state_slots;  // [runs] I32
  ConstTensorView window_new;   // [T] I32: cache row that each token's key goes to
  ConstTensorView window_seen;  // [T, n <= W] I32: rows of the window, oldest first, -1 padded
  EntryLists csa, hca;          // empty when the model has no such layer

  bool official() const { return context.numerics == Numerics::kOfficial; }
  TensorView activation(std::initializer_list<int64_t> shape) { return scratch.take(act, shape); }
};

// Tables are taken from `scratch` and live as long as the caller's scope. Page sizes come from the
// caches, so `caches` must hold one LayerCache per layer.
Step make_step(const Context& context, const ModelConfig& config, const ForwardBatch& batch,
               std::span<const LayerCache> caches, Scratch& scratch);

}  // namespace dsv4
