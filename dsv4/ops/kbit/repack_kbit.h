// repack_kbit: converts k-bit weights between the flat layout of files and the tiled layout of the
// reference's kernels (formats/kbit.h, KbitTiles), in both directions. Words and scales are moved
// unchanged.
//
//   flat    planes [n, k/32 * K]              scales [n, k/32]
//   tiled   planes [k_pad/64, n, 2 * K]       scales [k_pad/64, n, 2]   k_pad = align_up(k, 64)
//
// n is a multiple of 128. The padding block of an odd k/32 is written as zeros and not read back.

#pragma once

#include "dsv4/ops/op.h"
#include "dsv4/tensor/tensor.h"

namespace dsv4 {

enum class Repack : uint8_t { kToTiled, kToFlat };

struct RepackKbitArgs {
  Repack direction = Repack::kToTiled;
  int bits = 0;               // K
  ConstTensorView planes_in;  // flat or tiled, I32
  ConstTensorView scales_in;  // U8
  TensorView planes_out;      // the other layout; contiguous
  TensorView scales_out;
};

extern const Op<RepackKbitArgs> repack_kbit;

}  // namespace dsv4
