// KV compressor: pools r tokens into one entry, channel by channel (docs/spec/dsv4.md 5).
//
//   g_t = gate_t + ape[t mod r]
//   p_w[c] = sum_rows softmax_rows(g[c]) * a[c]
//
// Without overlap (HCA), entry w pools tokens w*r .. w*r + r - 1. With overlap (CSA), it pools the
// tokens of block w - 1 with dims [0, d_c), then those of block w with dims [d_c, 2 d_c); block -1
// does not exist and is left out.
//
// The batch is ragged: sequence i appends tokens cu_tokens[i] .. cu_tokens[i+1]-1, the first of
// them at position start[i]. Its newest tokens are kept in state slot state_slots[i] between calls
// (formats/state_layout.h), so any chunking gives the same entries and the same state, bit for bit.
// start[i] may be up to layout.spare tokens below the end of the previous call: the new tokens then
// replace the old ones. A sequence that starts at 0 does not read its state. Closed blocks are
// written in order, sequence by sequence: num_closed_entries(start, count, r) for each. The op does
// not include the projections before it, nor the norm, RoPE and quantization after it.
//
// Shapes may be larger than their contents, so that a CUDA graph can be replayed with other
// contents: rows of `out` past the last entry are written as zeros, tokens past the last sequence's
// are not read, and a sequence without tokens (cu_tokens[i] == cu_tokens[i+1]) may have a negative
// state slot.

#pragma once

#include "dsv4/formats/state_layout.h"
#include "dsv4/ops/op.h"
#include "dsv4/tensor/tensor.h"

namespace dsv4 {

// States of one compressor, a slot per sequence.
struct StatePool {
  TensorView slots;  // [slots, layout.floats()] f32
  StateLayout layout;
};

struct CompressorArgs {
  StateLayout layout;           // r, d_c, overlap, rows of the state
  ConstTensorView kv;           // [t, layout.columns()] f32
  ConstTensorView gate;         // [t, layout.columns()] f32, without ape
  ConstTensorView ape;          // [r, layout.columns()] f32
  ConstTensorView cu_tokens;    // [b + 1] I32
  ConstTensorView start;        // [b] I32
  ConstTensorView state_slots;  // [b] I32, distinct; negative: none, only without tokens
  TensorView state;             // [slots, layout.floats()] f32, updated
  TensorView out;               // [entries or more, d_c] f32|bf16: the pooled p_w, then zeros
};

// Blocks that close when `count` tokens are appended at position `start`.
constexpr int64_t num_closed_entries(int64_t start, int64_t count, int64_t ratio) {
  return (start + count) / ratio - start / ratio;
}

extern const Op<CompressorArgs> compressor;

}  // namespace dsv4
