// quantize_kbit: converts a matrix of floats to k-bit weights (formats/kbit.h), in blocks of 32
// along k.
//
//   z     = x / tensor_scale                              exact: tensor_scale is a power of two
//   value = codebook[code] * e4m4(scale) * tensor_scale   the decoded value
//
// kReference, the format's reference to the bit (docs/spec/lowbit.md 1.2): a = max |z| of the block
// in f32, t = z / max(a, 1e-8), the code whose value is nearest to t in f32, ties to the lower
// index; scale byte f32_to_e4m4(a). A block of zeros has scale 0 and the last code below the
// middle.
//
// kSearched, the same format with a better scale byte: the byte that minimizes
// sum_i importance_i (value_i - z_i)^2 among the candidates (quantize_kbit_kernel.h lists them; the
// other bytes would gain less than 0.02 dB), then the nearest code for that decoded scale, ties to
// the lower index. With equal errors, the smaller byte is used. A block of zeros has byte 0.
// Importance is relative to the other columns of its block; in a block whose importance is all
// zero, all columns are equal.
//
// The largest E4M4 scale is 31; larger values are neither wrapped nor clipped but need a
// `tensor_scale`. A tensor that is not a matrix is quantized as [1, numel]. Files contain rows of
// whole blocks; here k need not be a multiple of 32, and the last block of a row is padded with
// zeros, which do not affect its scale.

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
  // On a GPU, where no value can be refused: [1] I32, lowered to the number (row * blocks + block)
  // of the first block that is not written: values or importance that are not finite, negative
  // importance, or values beyond the range. May be absent.
  TensorView first_bad{};
};

// On the host, throws kBadInput with row, block and value when x or importance contains a NaN or
// an infinity, importance a negative number, or when a block's largest |x| / tensor_scale exceeds
// kE4M4Max (kSearched: times the nearer end of a codebook that ends below 1; the message says which
// tensor_scale to use). The contents of planes and scales are then undefined.
extern const Op<QuantizeKbitArgs> quantize_kbit;

// The largest magnitude of a tensor, 0 when it is empty. Throws kBadInput at a NaN or an infinity.
// x: [n, k] f32|bf16|f16
float largest_magnitude(const ConstTensorView& x);

// In CUDA builds: enqueues the search for the largest magnitude of x. *bits, in device memory, gets
// the bits of that f32; NaN and infinity are not refused.
void largest_magnitude_on(Device& device, const ConstTensorView& x, int32_t* bits);

// The tensor_scale for a tensor with this largest magnitude: 1 if it is in [2^-4, 16], otherwise
// the power of two that brings it into (8, 16]. Above 16, a codebook that ends below 1 would need
// scales above 31; below 2^-4, a block 64 times smaller than the largest one would have a scale
// below 2^-10, where E4M4 has fewer than 5 significant bits. A tensor of zeros gets 1. Throws
// kBadInput when the argument is negative or not finite.
float choose_tensor_scale(float largest_magnitude);

}  // namespace dsv4
