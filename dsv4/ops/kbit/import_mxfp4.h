// import_mxfp4: converts an MXFP4 matrix to k-bit weights of 4 bits with the e2m1 codebook. All
// values are equal, sign of zero included (docs/spec/lowbit.md 7.1).
//
//   e2m1(c) * 2^(b - 127)  =  (e2m1(c) / 8) * 2^(b - 124 - s) * 2^s         s = log2(tensor_scale)
//
// E4M4 holds the 19 powers of two from 2^-14 to 2^4, so a tensor fits when the scales of its blocks
// are within 18 octaves; s is 0 if possible, otherwise the value closest to 0 that fits. A block
// whose codes are all zeros fits with any scale except NaN (and gets scale 0).

#pragma once

#include <cstdint>

#include "dsv4/formats/weight.h"
#include "dsv4/tensor/tensor.h"

namespace dsv4 {

struct ImportMxfp4Args {
  WeightView weight;  // [n, k] kMxfp4
  TensorView planes;  // [n, k/32 * 4] I32
  TensorView scales;  // [n, k/32] U8, E4M4; the codebook is e2m1_codebook()
};

struct ImportMxfp4Result {
  float tensor_scale = 1.f;         // the weight's scale2
  int64_t blocks_out_of_range = 0;  // for every s, at least this many are out of range
  int64_t blocks_nan = 0;           // scale byte 255
  int smallest_exponent = 0, largest_exponent = 0;  // b - 127 over the nonzero blocks

  bool fits() const { return blocks_out_of_range == 0 && blocks_nan == 0; }
};

// If the tensor does not fit, nothing is written, and the caller keeps MXFP4.
ImportMxfp4Result import_mxfp4(const ImportMxfp4Args& args);

}  // namespace dsv4
