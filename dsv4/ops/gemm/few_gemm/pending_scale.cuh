// A block scale of an FP8 weight on its way from memory: requested before the wait for the previous
// kernel, used after it. A conversion where it is requested would stop the thread there.

#pragma once

#include "dsv4/device/ptx/thread.cuh"
#include "dsv4/formats/ue8m0.h"

namespace dsv4::few_gemm {

class PendingScale {
 public:
  PendingScale() = default;
  // scales: f32, else E8M0
  __device__ PendingScale(const void* scales, bool is_f32, int64_t i)
      : bits_(is_f32 ? static_cast<const uint32_t*>(scales)[i]
                     : static_cast<const uint8_t*>(scales)[i]),
        is_f32_(is_f32) {}

  // Waits until it has arrived.
  __device__ float value() const {
    const uint32_t bits = ptx::opaque(bits_);
    return is_f32_ ? __uint_as_float(bits) : ue8m0_to_f32(static_cast<uint8_t>(bits));
  }

 private:
  uint32_t bits_ = 0;
  bool is_f32_ = false;
};

}  // namespace dsv4::few_gemm
