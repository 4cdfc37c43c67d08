// Which of the 8 columns of a product belong to which pair and block.
//
// The 8 rows of a tile of activations are the columns of its products; its 128 columns of x are 4
// blocks of 32, or 8 of 16, for each of which the weights have a scale. An entry of 8 pairs has a
// pair in each row, so that every block needs accumulators of its own. In an entry of few pairs a
// row holds one block of a pair and zeros instead of the others: products of several blocks then
// add to the same accumulators, which are scaled once. A product with zeros does not change the
// bits of a sum.
//
//   width   2, 4 or 8: as many pairs as the entry has, or more
//   row     pair + width * (block % (8 / width))
//   set     the 8 / width neighboring blocks of a group of 128 that share accumulators
//
// A product has 32 columns. Two blocks of 16 are in one, so they must be of one set: such weights
// have entries of at most 4 pairs.

#pragma once

#include "dsv4/formats/kbit_image.h"
#include "dsv4/ops/gemm/sm90/experts/entries.h"
#include "dsv4/ops/gemm/weights/kbit_image_table.h"

namespace dsv4::gemm {

inline constexpr int kPairs = experts::kPairs;
inline constexpr int kHalves = kUnitColumns / 128;  // groups of Q8 in a unit
inline constexpr int kProductColumns = 32;
inline constexpr int kGroupProducts = 128 / kProductColumns;  // products of a group of Q8

// Pairs of an entry, at most.
DSV4_HD constexpr int most_pairs(ImageScale scale) {
  return kPairs * block_columns(scale) / kProductColumns;
}
__device__ constexpr int width_of(int pairs) {
  return pairs <= 2 ? 2 : pairs <= 4 ? 4 : 8;
}
// `pair` from the width on: a row of zeros.
__device__ constexpr int row_of(int width, int pair, int block) {
  return (pair + width * (block % (kPairs / width))) % kPairs;
}

template <int kWidth>
inline constexpr int kSetBlocks = kPairs / kWidth;
// Sets of a group. kBlock: columns
template <int kWidth, int kBlock>
inline constexpr int kSets = 128 / kBlock / kSetBlocks<kWidth>;

}  // namespace dsv4::gemm
