// The SIMD kernel of quantize_kbit_cpu.cc: one row of blocks. The bits are the same on every
// instruction set.
//
// The search of a scale byte. Let b be the byte of absmax / `reach`, the smallest scale that clips
// nothing, where `reach` is the largest codebook value (the nearer end of an asymmetric codebook).
//
//   up     always to byte b + 23 (K > 3) or b + 15. Above b the outermost levels are unused, and
//          only the fit of the inner levels can improve: NF5, with its wide gap below 1, prefers
//          b + 4.
//   down   in steps of 16 bytes while the clipping error sum w (|z| - s largest)^2 of the next
//          scale s is at most the best error. It increases further down, so no better byte is
//          missed.
//
// Compared with a search of all 256 bytes, the upper limit costs less than 0.02 dB of a tensor's
// SQNR for Gaussian, Student-t, uniform and sparse weights, with and without importance, for each
// codebook tried; up to 0.3 dB if all magnitudes of a block are equal within 5 percent, because
// then any level fits (quantize_kbit_test.cc measures this). Errors are f32 sums of at most 32
// terms, with rounding errors of at most 4e-6 of the error, 2e-5 dB.

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
  // The largest magnitude that a block may have. With a reference scale it is kE4M4Max; a searched
  // scale must also reach it with both ends of the codebook.
  float limit;
  // The levels that the search compares with: the values >= 0, compared with |z|, if the codebook
  // is antisymmetric (half the work); otherwise all values, compared with z. Both are multiplied
  // with `unit`, a power of two.
  bool magnitudes;
  int num_levels;
  float unit;
  std::array<float, kMaxLevels> level{};
  // A lookup replaces the distances to all levels: the nearest level of a |z| that rounds to i
  // units is below[i] or above[i]; larger |z| use the last cell. There are no cells if one would
  // need a third level.
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
