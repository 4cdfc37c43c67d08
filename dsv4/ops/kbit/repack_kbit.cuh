// The kernel of the implementation cuda of repack_kbit.h: a thread moves one word of planes, or one
// scale, between [n, blocks * width] and [ceil(blocks / 2), n, 2 * width].

#pragma once

#include <cstdint>

#include "dsv4/device/ptx/griddep.cuh"

namespace dsv4::kbit_packing {

inline constexpr int kRepackThreads = 256;

template <class T>
struct RepackSides {
  const T* in;
  T* out;
  int64_t flat_stride;  // elements from one flat row to the next
  int64_t n, flat_width;
  int width;  // of a block
  bool to_tiled;
};

// grid: elements of a tile, then tiles
template <class T>
__global__ void __launch_bounds__(kRepackThreads) repack_kernel(RepackSides<T> sides) {
  ptx::pdl_start();
  const int64_t in_tile = int64_t{blockIdx.x} * kRepackThreads + threadIdx.x;
  const int item = 2 * sides.width;
  if (in_tile >= sides.n * item) return;
  const int64_t row = in_tile / item, tile = blockIdx.y, column = tile * item + in_tile % item;
  const int64_t tiled = tile * sides.n * item + in_tile, flat = row * sides.flat_stride + column;
  const bool exists = column < sides.flat_width;
  if (sides.to_tiled) {
    sides.out[tiled] = exists ? sides.in[flat] : T{0};
  } else if (exists) {
    sides.out[flat] = sides.in[tiled];
  }
}

}  // namespace dsv4::kbit_packing
