// The store of an element whose type is known at run time: of products whose kernels have many
// instances already, and store little beside what they read. Runs of elements of a known type are
// stored by device/pack.cuh.

#pragma once

#include "dsv4/device/math.cuh"
#include "dsv4/tensor/tensor.h"

namespace dsv4::gemm::cuda {

// out[i] = value, rounded to dtype, which is F32, F16 or BF16.
__device__ inline void store_at(void* out, DType dtype, int64_t i, float value) {
  switch (dtype) {
    case DType::kBF16:
      static_cast<bf16*>(out)[i] = from_float<bf16>(value);
      return;
    case DType::kF16:
      static_cast<f16*>(out)[i] = from_float<f16>(value);
      return;
    default:
      static_cast<float*>(out)[i] = value;
  }
}

}  // namespace dsv4::gemm::cuda
