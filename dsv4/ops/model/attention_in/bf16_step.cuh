// A value as bf16 stores it, for steps that kOfficial rounds.

#pragma once

#include "dsv4/device/math.cuh"

namespace dsv4::attention_in_kernel {

__device__ inline float bf16_step(float x) {
  return to_float(from_float<bf16>(x));
}

}  // namespace dsv4::attention_in_kernel
