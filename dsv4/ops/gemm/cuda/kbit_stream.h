// Up to 64 rows of bf16 or f16 times a k-bit weight in rows (formats/kbit.h), with any codebook:
// each code is read and decoded once for up to 16 rows. kbit_stream/kernel.cuh is the kernel,
// kbit_stream_plan.h how a call is divided.

#pragma once

#include "dsv4/device/device.h"
#include "dsv4/formats/weight.h"
#include "dsv4/ops/op.h"
#include "dsv4/tensor/tensor.h"

namespace dsv4::gemm::kbit_stream {

struct Product {
  ConstTensorView x;  // [t, k] bf16 or f16, rows 16-byte aligned
  WeightView weight;  // [n, k], K = 2 to 5
  TensorView out;     // [t, n] f32, bf16 or f16
};

// Returns nullptr, or why the kernel cannot compute it.
const char* reject(const Context& context, const Product& product);
void run(const Context& context, const Product& product);

// The largest relative error of a weight: the codebook and its product with the scale are rounded.
constexpr double rounding(DType x) {
  return x == DType::kF16 ? 0x1p-10 : 0x1p-8;
}

}  // namespace dsv4::gemm::kbit_stream
