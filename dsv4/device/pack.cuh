// Runs of elements moved with one wide access.
//
//   float x[4];
//   load<4>(row + c, x);      // one 8-byte load of four bf16, one 16-byte load of four floats
//   store<4>(row + c, x);
//
// The host calls packs() first; tensors aligned only to their element take kernels instantiated
// with runs of one.

#pragma once

#include <algorithm>

#include "dsv4/device/math.cuh"
#include "dsv4/tensor/tensor.h"

namespace dsv4 {

inline constexpr int kAccessBytes = 16;  // the widest access of a thread

template <class T, int kN>
struct alignas(std::min(kAccessBytes, static_cast<int>(sizeof(T)) * kN)) Pack {
  T value[kN];
};

// Whether every row of the tensor starts at, and consists of, whole packs of n elements.
inline bool packs(const ConstTensorView& view, int64_t n) {
  const int64_t unit = std::min<int64_t>(kAccessBytes, n * item_bytes(view.dtype));
  bool whole = reinterpret_cast<uintptr_t>(view.data) % static_cast<uintptr_t>(unit) == 0 &&
               view.dim(-1) % n == 0;
  for (int axis = 0; axis + 1 < view.rank; ++axis) {
    whole = whole && view.stride[static_cast<size_t>(axis)] % n == 0;
  }
  return whole;
}

template <int kN, class T>
__device__ inline void load(const T* from, float* to) {
  const auto pack = *reinterpret_cast<const Pack<T, kN>*>(from);
#pragma unroll
  for (int i = 0; i < kN; ++i) to[i] = to_float(pack.value[i]);
}

// Rounded to the element type.
template <int kN, class T>
__device__ inline Pack<T, kN> packed(const float* from) {
  Pack<T, kN> pack;
#pragma unroll
  for (int i = 0; i < kN; ++i) pack.value[i] = from_float<T>(from[i]);
  return pack;
}

template <int kN, class T>
__device__ inline void store(T* to, const float* from) {
  *reinterpret_cast<Pack<T, kN>*>(to) = packed<kN, T>(from);
}

}  // namespace dsv4
