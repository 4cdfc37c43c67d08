// Many rows of bf16 or f16, 17 to some hundreds, times a k-bit weight in rows (formats/kbit.h) with
// any codebook, on Hopper: weights are decoded in registers beside wgmma. kbit_wide/kernel.cuh is
// the kernel, kbit_wide/order_x.cuh the launch before it, kbit_wide_plan.h how a call is divided.

#pragma once

#include "dsv4/device/device.h"
#include "dsv4/formats/weight.h"
#include "dsv4/ops/gemm/cuda/kbit_stream.h"
#include "dsv4/ops/op.h"
#include "dsv4/tensor/tensor.h"

namespace dsv4::gemm::kbit_wide {

using kbit_stream::rounding;  // both look weights up in one table

struct Product {
  ConstTensorView x;  // [t, k] bf16 or f16, rows 16-byte aligned
  WeightView weight;  // [n, k], K = 2 to 5, k a multiple of 512
  TensorView out;     // [t, n] f32, bf16 or f16
};

// Returns nullptr, or why the kernel cannot compute it.
const char* reject(const Context& context, const Product& product);
void run(const Context& context, const Product& product);

}  // namespace dsv4::gemm::kbit_wide
