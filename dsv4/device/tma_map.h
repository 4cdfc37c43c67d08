// Tensor maps of the tensor memory accelerator (Hopper and newer): the descriptor that
// cp.async.bulk.tensor needs of a tensor in device memory and of the box that one copy moves.
//
// The driver rejects any wrong description with the same error code. Here every rule has its own
// message and is checked before the driver call:
//
//   base        not null, a multiple of 16 bytes
//   rank        1 to 5; axis 0 is the innermost and contiguous
//   size        of each axis, 1 to 2^32 elements
//   stride      of each axis but the innermost, in bytes: a multiple of 16, below 2^40, at least
//               the span of the axes inside it
//   box         elements of each axis, 1 to 256; the innermost in bytes a multiple of 16
//   swizzle     the innermost extent of the box fits the swizzle span: 32, 64 or 128 bytes
//
// Source: CUDA driver API, cuTensorMapEncodeTiled; PTX ISA, "Tensor-map". Interleaved layouts,
// im2col and element strides other than 1 are not supported.

#pragma once

#include <cuda.h>

#include <array>
#include <cstdint>

#include "dsv4/tensor/dtype.h"

namespace dsv4 {

enum class TmaSwizzle : uint8_t { kNone, k32, k64, k128 };

struct TmaBox {
  static constexpr int kMaxRank = 5;

  const void* base = nullptr;  // on the device
  DType dtype = DType::kBF16;
  int rank = 0;
  std::array<int64_t, kMaxRank> size{};    // in elements, innermost first
  std::array<int64_t, kMaxRank> stride{};  // in bytes; stride[0] is not used
  std::array<int64_t, kMaxRank> box{};     // in elements
  TmaSwizzle swizzle = TmaSwizzle::kNone;
};

// A [rows, columns] tensor with a row stride of `row_bytes`, in boxes of [box_rows, box_columns].
TmaBox tma_rows(const void* base, DType dtype, int64_t rows, int64_t columns, int64_t row_bytes,
                int64_t box_rows, int64_t box_columns, TmaSwizzle swizzle);

// Throws kInvalidArgument with the violated rule and the values.
void check(const TmaBox& box);

// check(), then the driver call. Elements outside the tensor read as zero. Pass the map to kernels
// by value as a __grid_constant__ parameter. Throws kUnsupported if the driver has no tensor maps.
CUtensorMap make_tma_map(const TmaBox& box);

}  // namespace dsv4
