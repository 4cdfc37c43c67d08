// repack_scales: moves the scales of FP4 weights between the rows of files and the tiles of
// Blackwell's tensor cores (formats/scale_tiles.h), unchanged.
//
//   rows    [n, groups] a byte each      tiles   [ceil(n/128), ceil(groups/4), 512] U8
//
// Padding of the tiles is written as zeros and not read back. The codes of an FP4 weight need no
// conversion: these tensor cores read them as files have them, two of a byte, the low nibble first.
// No implementation of a product here reads the tiles.

#pragma once

#include "dsv4/ops/kbit/repack_kbit.h"
#include "dsv4/ops/op.h"
#include "dsv4/tensor/tensor.h"

namespace dsv4 {

struct RepackScalesArgs {
  Repack direction = Repack::kToTiled;
  ConstTensorView scales_in;  // rows or tiles: E4M3, E8M0 or U8
  TensorView scales_out;      // the other; tiles are contiguous, rows may be strided
};

extern const Op<RepackScalesArgs> repack_scales;

}  // namespace dsv4
