// quantize_kbit: a matrix of floats to k-bit weights (formats/kbit.h), blocks of 32 along k.
//
//   z     = x / tensor_scale                              exact: tensor_scale is a power of two
//   value = codebook[code] * e4m4(scale) * tensor_scale   what a reader makes of it
//
// kReference, the format's reference to the bit (spec lowbit.md 1.2): a = max |z| of the block in
// f32, t = z / max(a, 1e-8), the code whose value is nearest to t in f32, ties to the lower index;
// scale byte f32_to_e4m4(a). A block of zeros has scale 0 and the last code below the middle.
//
// kSearched, the same format with a better scale byte: the one that minimises
// sum_i importance_i (value_i - z_i)^2 over the bytes in reach (quantize_kbit_kernel.h says which,
// and that the other bytes of the 256 would gain less than 0.02 dB), then the nearest code for that
// decoded scale, ties to the lower index. Equal errors: the smaller byte. A block of zeros has byte
// 0. Importance counts relative to the other columns of its block; a block without any counts all
// columns alike.
//
// E4M4 ends at 31, and nothing is wrapped or clipped for that: see `tensor_scale`. A tensor that is
// not a matrix is quantised as [1, numel]. Files hold rows of whole blocks; k need not be a
// multiple of 32 here, the last block of a row is padded with zeros (which have no say in its
// scale).

#pragma once

#include "dsv4/formats/codebook.h"
#include "dsv4/ops/op.h"
#include "dsv4/tensor/tensor.h"

namespace dsv4 {

enum class ScaleChoice : uint8_t { kReference, kSearched };

const char* name(ScaleChoice choice);

struct QuantizeKbitArgs {
  ConstTensorView x;  // [n, k] f32|bf16|f16, finite; rows may be strided
  Codebook codebook;  // its bits are K
  ScaleChoice choice = ScaleChoice::kSearched;
  ConstTensorView importance{};  // [k] f32, finite, >= 0; kSearched only; empty: all equal
  float tensor_scale = 1.f;      // the weight's scale2: a power of two, see choose_tensor_scale
  TensorView planes;             // [n, ceil(k/32) * K] I32
  TensorView scales;             // [n, ceil(k/32)] U8, E4M4
};

// Throws kBadInput naming row, block and value when x or importance holds a NaN or an infinity,
// importance a negative number, or when a block's largest |x| / tensor_scale exceeds kE4M4Max
// (searched: times the nearer end of a codebook that ends below 1; the sentence says which
// tensor_scale to use). Planes and scales hold nothing useful then.
extern const Op<QuantizeKbitArgs> quantize_kbit;

// The largest magnitude of a tensor, 0 when it is empty. Throws kBadInput at a NaN or an infinity.
// x: [n, k] f32|bf16|f16
float largest_magnitude(const ConstTensorView& x);

// The tensor_scale for a tensor whose largest magnitude is this: 1 while it lies in [2^-4, 16], the
// power of two that brings it into (8, 16] otherwise. Above 16 a codebook that ends below 1 wants
// scales beyond 31; below 2^-4 a block 64 times smaller than the largest one would have a scale
// below 2^-10, where E4M4 has fewer than 5 significant bits. A tensor of zeros gets 1.
// Throws kBadInput when the argument is negative or not finite.
float choose_tensor_scale(float largest_magnitude);

}  // namespace dsv4
