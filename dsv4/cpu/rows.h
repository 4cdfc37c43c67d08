// CPU implementations compute in f32 whatever the storage dtype; these functions load and store a
// run of values.

#pragma once

#include <cstdint>

#include "dsv4/tensor/tensor.h"

namespace dsv4::cpu {

// Values [offset, offset + n) of a contiguous run, in elements from view.data. F32, BF16 or F16.
void load(const ConstTensorView& view, int64_t offset, int64_t n, float* out);
// Stores with the one rounding of the storage dtype. F32, BF16 or F16.
void store(const TensorView& view, int64_t offset, int64_t n, const float* values);

}  // namespace dsv4::cpu
