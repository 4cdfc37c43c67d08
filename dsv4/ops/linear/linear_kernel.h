// The SIMD kernels under linear_cpu.cc: packing of activations and one block of a product.
//
// Every output element is computed in one order, whatever the number of tokens:
//
//   w[p]   = the stored weight as f32, scale included, columns in packed order p
//   acc[l] = fma(x[p], w[p], acc[l])   for p = l, l + V, l + 2V, ...   (V = lanes of a vector)
//   y      = scale2 * (sum of acc's lanes)
//
// Fused (few tokens: decode in registers, memory bound) and tiled (many tokens: decode once into a
// cache-resident tile, FMA bound) follow it alike, hence equal bits. Packed order puts the even
// columns of a block before the odd ones, because that is how two codes of a word come apart.
// A NaN result is always the same quiet NaN, so that its bits do not depend on operand order.

#pragma once

#include <cstdint>

#include "dsv4/formats/weight.h"

namespace dsv4::linear_kernel {

// Columns of packed activations come in multiples of this; the rest is zero.
inline constexpr int64_t kPad = 64;

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
};

// Activations are packed as panels of up to panel_tokens() tokens, vectors of the tokens side by
// side: panel[p / V][token][p % V]. All but the last panel of a product are full.
struct Panel {
  float* data;
  int64_t width;  // tokens in this panel
};
int64_t panel_tokens();
// x: [padded] f32, k rounded up to kPad, zero from k on -> column `slot` of the panel
void pack(WeightFormat format, const float* x, int64_t padded, const Panel& panel, int64_t slot);

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
