// Dense matrix products by cuBLASLt, loaded at the first use: a program starts where it is missing.
//
//   out[t, n] = sum_k x[t, k] * weight[n, k]
//
// BF16 or F16 operands, or E4M3 operands with f32 scales of blocks: one per 128 columns of a row
// of x, one per 128 x 128 block of the weight; then t is a multiple of 4. An algorithm is asked for
// once per shape and kept for the life of the program. Not batch invariant: the algorithm depends
// on t.

#pragma once

#include <cstdint>

#include "dsv4/device/device.h"
#include "dsv4/tensor/dtype.h"

namespace dsv4 {

inline constexpr int kLtAlignment = 16;  // bytes, of every pointer and every row
inline constexpr int kLtScaleBlock = 128;

struct LtShape {
  int64_t t = 0, n = 0, k = 0;
  int64_t x_stride = 0, weight_stride = 0, out_stride = 0;  // from row to row, in elements
  DType operands = DType::kBF16;                            // BF16, F16, or E4M3 with scales
  DType out = DType::kF32;                                  // F32|BF16, of F16 operands F32|F16

  auto operator<=>(const LtShape&) const = default;
};

struct LtPointers {
  const void *x = nullptr, *weight = nullptr;
  void* out = nullptr;
  // E4M3 only, dense: x_scale [k/128, t], weight_scale [n/128, lt_weight_scale_stride(k)]
  const float *x_scale = nullptr, *weight_scale = nullptr;
};

// Rows of the weight's scales are padded to whole 16 bytes.
constexpr int64_t lt_weight_scale_stride(int64_t k) {
  return (k + 4 * kLtScaleBlock - 1) / (4 * kLtScaleBlock) * 4;
}

// Null: can run. Otherwise why not: no library, or no algorithm for the shape on this device.
const char* lt_reject(Device& device, const LtShape& shape);
// Loads the library and its kernels by small products, and waits. Loading takes seconds and may
// wait for kernels that run, so no step for which other GPUs wait may be the first to need it.
void lt_prepare(Device& device);
// From now on lt_reject() refuses every product of this process, for ranks that share a GPU: the
// library loads a kernel when a shape first needs it, which would wait for a kernel of another rank
// that waits for this one.
void lt_refuse_all();
// Enqueues the product on the device's stream; takes its workspace from the device's.
void lt_matmul(Device& device, const LtShape& shape, const LtPointers& pointers);

}  // namespace dsv4
