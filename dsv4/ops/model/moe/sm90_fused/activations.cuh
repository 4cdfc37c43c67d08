// Q8 of rows into the tiles that a warpgroup multiplies: as experts/sm90_few_e4m3/activations.cuh,
// but of up to two tokens, so that a thread has 16 columns of one row, and of several items.

#pragma once

#include "dsv4/ops/gemm/x/rows_of_experts.cuh"
#include "dsv4/ops/model/moe/sm90_fused/config.cuh"

namespace dsv4::moe_kernel::sm90_fused {

// Tiles and their scales to zero, before the wait: rows of other blocks (columns.cuh) stay zero,
// and so do columns of tokens that do not exist. All threads; a barrier follows.
template <class S>
__device__ void clear(S& shared) {
  const auto zero = [](auto& array) {
    constexpr auto kVectors = static_cast<int>(sizeof(array)) / static_cast<int>(sizeof(uint4));
    static_assert(kVectors * sizeof(uint4) == sizeof(array));
    auto* const vectors = reinterpret_cast<uint4*>(&array);
    for (int i = static_cast<int>(threadIdx.x); i < kVectors; i += kThreads) vectors[i] = {};
  };
  zero(shared.x), zero(shared.x_scale), zero(shared.own.keys), zero(shared.own.weight);
}

// The chunks of a warpgroup in all rows of some items, as pieces of 16 columns. kWidth: of the
// columns of a product (columns.cuh).
template <int kWidth>
class Rows {
 public:
  // pair_bits: pairs of an item are 1 << pair_bits
  __device__ Rows(const gemm::experts::Params& p, int group, int pair_bits)
      : p_(p), group_(group), pair_bits_(pair_bits) {
    chunk_bits_ = e4m3::steps_of(p) > 2 ? 2 : 1;  // at least two: pieces of a row fill a warp
  }
  __device__ int pieces(int items) const { return items * kPieces << (pair_bits_ + chunk_bits_); }

  // Where a piece is, or null. row(item, pair): where a row begins, or null.
  template <class Row>
  __device__ const uint4* find(int piece, const Row& row) const {
    const Place at(*this, piece);
    const bf16* const from = row(at.item, at.pair);
    if (from == nullptr || at.column >= p_.columns) return nullptr;
    return reinterpret_cast<const uint4*>(from + at.column);
  }
  __device__ static e4m3::Columns16 load(const uint4* from) {
    if (from == nullptr) return {};
    return {from[0], from[1]};
  }
  // All lanes of a warp. tile: the first of the first item, each of which has `item_tiles`.
  template <class S>
  __device__ void store(int piece, const e4m3::Columns16& x, int item_tiles, S& shared) const {
    const Place at(*this, piece);
    float largest = x.largest();
#pragma unroll
    for (int step = 1; step < 8; step *= 2)
      largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, step));
    if (at.chunk >= p_.chunks) return;
    const uint8_t scale = q8_scale(largest);
    const int column16 = piece % 8,
              tile = at.item * item_tiles + 2 * at.chunk + piece % kPieces / 8;
    const int to = gemm::row_of(kWidth, at.pair, column16 * 16 / block_columns(S::kScale));
    *reinterpret_cast<uint4*>(shared.x[tile].codes[to] + 16 * (column16 ^ to)) =
        x.codes(inverse_scale(scale));
    if (column16 == 0) shared.x_scale[tile][at.pair] = ue8m0_to_f32(scale);
  }

 private:
  static constexpr int kPieces = gemm::kUnitColumns / 16;  // of a chunk

  struct Place {
    int item, pair, chunk, column;
    __device__ Place(const Rows& rows, int piece) {
      const int run = piece / kPieces, of_item = run >> rows.chunk_bits_;
      chunk = (run & ((1 << rows.chunk_bits_) - 1)) * e4m3::kGroups + rows.group_;
      pair = of_item & ((1 << rows.pair_bits_) - 1), item = of_item >> rows.pair_bits_;
      column = chunk * gemm::kUnitColumns + piece % kPieces * 16;
    }
  };

  const gemm::experts::Params& p_;
  int group_, pair_bits_, chunk_bits_;
};

}  // namespace dsv4::moe_kernel::sm90_fused
