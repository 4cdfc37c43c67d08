// The input path of attention: from the normalized input x of a block to queries, and to rows of
// the caches (docs/spec/dsv4.md 4.1, 5, 6). The caches are written before attention reads them: the
// query that closes a block of tokens already sees its entry (4.3).
//
//   c       = rms_norm(x wq_a)                                latent of the queries
//   q       = rope(head_norm(c wq_b))                         of each head
//   window  <- rope(rms_norm(x wkv))                          one row per token
//   entries <- rope(rms_norm(compressor(x wkv', x wgate')))   layers with compression: one row
//                                                             per block that closes in this step
//   keys    <- hadamard(rope(rms_norm(compressor(...))))      layers with an indexer: the same
//                                                             with the indexer's compressor
//   index_q       = S4(hadamard(rope(c wq_b')))               where the caller selects entries
//   index_weights = x weights_proj
//
// kOfficial stores every intermediate value in bf16, but for the compressors' f32 input and states,
// quantizes x and c (Q8, groups of 128) before quantized weights, and lets the rows of packed pools
// round what is inserted. kExact stores f32 and leaves out Hadamard and S4.

#pragma once

#include "dsv4/formats/weight.h"
#include "dsv4/ops/model/hc_boundary/hc_boundary.h"
#include "dsv4/ops/op.h"
#include "dsv4/ops/parts/compressor/compressor.h"
#include "dsv4/ops/pools.h"
#include "dsv4/tensor/tensor.h"

namespace dsv4 {

struct CompressorWeights {
  WeightView wkv, wgate;  // [c, D], c = 2 d_c with overlap, else d_c
  ConstTensorView ape;    // [r, c] f32
  ConstTensorView norm;   // [d_c] f32|bf16
};

struct IndexerWeights {
  WeightView wq_b;          // [index_heads * index_dim, Q]
  WeightView weights_proj;  // [index_heads, D]
  CompressorWeights compressor;
};

struct AttentionInWeights {
  WeightView wq_a, wq_b, wkv;       // [Q, D], [h * d, Q], [d, D]
  ConstTensorView q_norm, kv_norm;  // [Q], [d] f32|bf16
  CompressorWeights compressor;     // layers with compression
  IndexerWeights indexer;           // layers with an indexer
};

struct AttentionInArgs {
  ConstTensorView x;        // [t, D] f32|bf16
  HcBoundaryArgs boundary;  // if given, it is computed first, and x is its x
  AttentionInWeights weights;
  float norm_eps = 1e-6f;
  ConstTensorView positions;  // [t] I32
  ConstTensorView freqs;      // [num_pairs] f32, of everything that is rotated

  KvPool window;
  ConstTensorView window_rows;  // [t] I32 rows of the window; negative: skip

  // Layers with compression: state.layout.ratio > 0. The tokens as runs of sequences, as the
  // compressor takes them, and the entries that close. Their list may be longer: it is padded with
  // row -1 at position 0.
  ConstTensorView cu_tokens;        // [b + 1] I32
  ConstTensorView start;            // [b] I32
  ConstTensorView state_slots;      // [b] I32
  ConstTensorView entry_rows;       // [n] I32 rows of entries, and of keys
  ConstTensorView entry_positions;  // [n] I32 where RoPE places the entries
  KvPool entries;
  StatePool state;
  // Layers with an indexer: index_state.layout.ratio > 0.
  IndexPool keys;
  StatePool index_state;

  TensorView q;  // [t, h, d] f32|bf16, contiguous
  // [n, index_heads, index_dim] f32|bf16, contiguous: of the tokens from index_first on, of which
  // the caller may want some alone; rank 0: not wanted
  TensorView index_q;
  int64_t index_first = 0;
  TensorView index_weights;  // [t, index_heads] f32|bf16 of all tokens, with index_q
};

extern const Op<AttentionInArgs> attention_in;

}  // namespace dsv4
