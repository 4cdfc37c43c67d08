// The SIMD kernel under quantize_kbit_cpu.cc: one row of blocks. The same bits on every instruction
// set.
//
// The search of a scale byte. Let b be the byte of absmax / `reach`, the smallest scale that clips
// nothing, where `reach` is the largest codebook value (the nearer end of a lopsided codebook).
//
//   up     bytes to b + 23 (K > 3) or b + 15, always. Above b the outermost levels lie idle, which
//          pays only while the levels inside fall better: NF5, with its wide gap below 1, likes
//          b + 4.
//   down   in steps of 16 bytes while the clipping error sum w (|z| - s largest)^2 of the next
//          scale s is not yet worse than the best error: it only grows further down, so no byte is
//          lost.
//
// What the bytes above lose: less than 0.02 dB of a tensor's SQNR against all 256 bytes, for
// Gaussian, Student-t, uniform and sparse weights, with and without importance, for each codebook
// tried; up to 0.3 dB where all magnitudes of a block are the same within 5 percent, because any
// level will do for these (quantize_kbit_test.cc measures all that). Errors are f32 sums of at most
// 32 terms: 4e-6 of the error at most, 2e-5 dB.

#pragma once

#include <array>
#include <cstdint>

#include "dsv4/formats/kbit.h"
#include "dsv4/ops/kbit/quantize_kbit.h"

namespace dsv4::kbit_kernel {

inline constexpr int kMaxLevels = 1 << kMaxKbit;

struct Quantizer {
  Quantizer(const Codebook& book, ScaleChoice scale_choice);

  Codebook codebook;
  ScaleChoice choice;
  float reach;  // the nearer end of the codebook when it has values on both sides of zero
  // The largest magnitude that a block may have. What a reference scale cannot say is beyond
  // kE4M4Max; a searched one must also reach it with both ends of the codebook.
  float limit;
  // What the search measures distances to: the values >= 0 against |z| when the codebook is
  // antisymmetric (half the work), else all values against z. Both times `unit`, a power of two.
  bool magnitudes;
  int num_levels;
  float unit;
  std::array<float, kMaxLevels> level{};
  // One lookup instead of all distances: the nearest level of a |z| that rounds to i units is
  // below[i] or above[i]; all beyond the last cell belong to it. No cells when one would need a
  // third level.
  int num_cells = 0;
  std::array<float, kMaxLevels> below{}, above{};
};

// z: [blocks * 32], zero from k on
// weights: [blocks * 32] or null; at most 1 and not all zero in a block
// planes: [blocks, K]; scales: [blocks]
// Returns the first block that holds a NaN or a magnitude above the limit, else -1.
int64_t quantize_row(const Quantizer& quantizer, const float* z, int64_t k, const float* weights,
                     uint32_t* planes, uint8_t* scales);

}  // namespace dsv4::kbit_kernel
