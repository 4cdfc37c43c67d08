// k-bit weights for callers who have nothing but plain tensors: three views and a number.
//
//   KbitWeight w{.planes = planes, .scales = scales, .codebook = codebook};
//   dequantize_kbit(w, out);           out[n, k] = codebook[code] * e4m4(scale) * scale2
//   kbit_linear(w, x, out);            out[t, n] = sum_k x[t, k] * weight[n, k], f32 sums
//
// n, k and K come from the shapes; layout and value of the bits: formats/kbit.h (the flat layout;
// repack_kbit.h has the tiled one). How floats become such weights: quantize_kbit.h.
// Errors are dsv4::Error with the tensor's name and its wanted and given shape; kUnsupported when
// no implementation of linear takes k-bit weights on this machine.

#pragma once

#include "dsv4/formats/weight.h"
#include "dsv4/tensor/tensor.h"

namespace dsv4 {

struct KbitWeight {
  ConstTensorView planes;    // [n, k/32 * K] or [n, k/32, K] I32
  ConstTensorView scales;    // [n, k/32] U8, E4M4
  ConstTensorView codebook;  // [2^K] f32
  float scale2 = 1.f;        // the tensor's scale

  WeightView view() const;  // checked
};

// out: [n, k] f32|bf16|f16
void dequantize_kbit(const KbitWeight& weight, const TensorView& out);

// x: [t, k] f32|bf16; out: [t, n] f32|bf16
void kbit_linear(const KbitWeight& weight, const ConstTensorView& x, const TensorView& out);

}  // namespace dsv4
