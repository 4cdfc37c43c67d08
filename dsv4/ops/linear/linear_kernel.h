// The SIMD kernels under linear_cpu.cc: packing of activations and one block of a product.
//
// Every output element is computed in one order, whatever the number of tokens (V = lanes of a
// vector, p counts columns in packed order):
//
//   f32, bf16, f16, fp8      w[p]   = the stored weight as f32, scale included
//                            acc[l] = fma(x[p], w[p], acc[l])         for p = l, l + V, l + 2V, ...
//   mxfp4, nvfp4, k-bit      c[p]   = the code's value as f32
//                            s      = x[p] * c[p], then fma(x[p], c[p], s)   over a step
//                            acc[l] = fma(s, scale[l], acc[l])        for each step
//   all                      y      = scale2 * (sum of acc's lanes)
//
// A lane's part of a step lies within one block of the weight and so has one scale: one product
// with a scale a block and not one a weight. An MXFP4 weight and its k-bit image (e2m1/8 codebook,
// scales 8 times as large) differ by powers of two in c and scale, hence give the same bits.
//
// Fused (few tokens: decode in registers, memory bound) and tiled (many tokens: decode once into a
// cache-resident tile, FMA bound) follow this order alike, hence equal bits. Packed order is the
// order in which codes come out of their words: see the decoders.
// A NaN result is always the same quiet NaN, so that its bits do not depend on operand order.

#pragma once

#include <cstdint>

#include "dsv4/formats/weight.h"

namespace dsv4::linear_kernel {

// A WeightView as the kernels read it. Rows may start at any address.
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

// Columns of packed activations: k rounded up to what the decoder takes at once.
int64_t padded_columns(const Weights& weights);

// Activations are packed as panels of up to panel_tokens() tokens, vectors of the tokens side by
// side: panel[p / V][token][p % V]. All but the last panel of a product are full.
struct Panel {
  float* data;
  int64_t width;  // tokens in this panel
};
int64_t panel_tokens();
// x: [padded_columns()] f32, zero from k on -> column `slot` of the panel
void pack(const Weights& weights, const float* x, const Panel& panel, int64_t slot);

// Rows [row, row + rows) of w times `tokens` tokens. Blocks start at multiples of kRowAlign and do
// not cross a multiple of kMaxBlockRows, so that the rows of an fp8 block share their scales.
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

}  // namespace dsv4::linear_kernel
