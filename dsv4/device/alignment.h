// Alignment of tensors, for the reject functions of kernels with wide accesses.

#pragma once

#include <cstdint>

#include "dsv4/tensor/tensor.h"

namespace dsv4 {

// Every row (last axis) starts at a multiple of `bytes`.
inline bool rows_on(const ConstTensorView& view, int64_t bytes) {
  if (reinterpret_cast<uintptr_t>(view.data) % static_cast<uintptr_t>(bytes) != 0) return false;
  for (int axis = 0; axis + 1 < view.rank; ++axis) {
    if (view.stride[static_cast<size_t>(axis)] * item_bytes(view.dtype) % bytes != 0) return false;
  }
  return true;
}

}  // namespace dsv4
