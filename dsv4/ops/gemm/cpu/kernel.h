// The SIMD kernels of jobs.cc: packing of activations, and one block of a product. Here rows are
// rows of the weight (N) and tokens are rows of x and out (M).
//
// Every output element is computed in the same order, whatever the number of tokens (V = lanes of a
// vector, p counts columns in packed order):
//
//   f32, bf16, f16, fp8      w[p]   = the stored weight as f32, scale included
//                            acc[l] = fma(x[p], w[p], acc[l])         for p = l, l + V, l + 2V, ...
//   mxfp4, nvfp4, k-bit      c[p]   = the code's value as f32
//                            s      = x[p] * c[p], then fma(x[p], c[p], s)   over a step
//                            acc[l] = fma(s, scale[l], acc[l])        for each step
//   all                      y      = scale2 * (sum of acc's lanes)
//
// In a step, each lane's columns lie within one scale block of the weight and share one scale, so
// the scale is applied once per block instead of once per weight. An MXFP4 weight and its k-bit
// image (e2m1/8 codebook, scales 8 times as large) differ by powers of two in c and scale, and
// therefore give the same bits.
//
// The fused kernel (up to 3 tokens: decoding in registers, memory bound) and the tiled kernel (more
// tokens: decoding once into a tile in the cache, FMA bound) both follow this order, so their bits
// are equal. Packed order is the order in which the decoders produce columns. A NaN result is
// always the same quiet NaN, so its bits do not depend on the order of operands.

#pragma once

#include <cstdint>

#include "dsv4/formats/weight.h"

namespace dsv4::gemm::cpu {

// A WeightView in the form that the kernels read. Rows may start at any address.
struct Weights {
  explicit Weights(const WeightView& view);

  const uint8_t* row(int64_t i) const { return data + i * row_bytes; }

  WeightFormat format;
  int64_t n, k;
  const uint8_t* data;
  int64_t row_bytes;
  const uint8_t* scale;
  int64_t scale_row_bytes;
  bool scale_is_f32;
  float scale2;
  int bits;               // kKbit: K
  const float* codebook;  // kKbit: [2^K]
};

// Columns of packed activations: k rounded up to a whole step of the decoder.
int64_t padded_columns(const Weights& weights);

// Activations are packed into panels of up to panel_tokens() tokens, whose vectors are interleaved:
// panel[p / V][token][p % V]. Every panel of a GEMM but the last is full.
struct Panel {
  float* data;
  int64_t width;  // tokens in this panel
};
int64_t panel_tokens();
// Writes x, [padded_columns()] f32 and zero from k on, as token `slot` of the panel.
void pack(const Weights& weights, const float* x, const Panel& panel, int64_t slot);

// A block of out: rows [row, row + rows) of the weight times `tokens` tokens. Blocks start at
// multiples of kRowAlign and do not cross a multiple of kMaxBlockRows, so that all rows of a block
// share the scales of FP8 weights.
struct Block {
  const Weights* weights;
  int64_t row, rows;
  const float* panels;
  int64_t tokens;
  float* scratch;  // [scratch_floats()], 64-byte aligned
  float* out;      // [tokens, rows]
};
inline constexpr int64_t kRowAlign = 8;
inline constexpr int64_t kMaxBlockRows = kFp8BlockSize;
int64_t scratch_floats(const Weights& weights, int64_t rows, int64_t tokens);
void multiply(const Block& block);

}  // namespace dsv4::gemm::cpu
