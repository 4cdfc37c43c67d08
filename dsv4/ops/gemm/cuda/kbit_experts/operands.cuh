// What a warp needs beside codes for the unit after the one that it multiplies: bytes of scales and
// eight rows of x, which are requested a unit ahead, also over the ends of blocks and items.

#pragma once

#include "dsv4/ops/gemm/cuda/kbit_experts/config.cuh"
#include "dsv4/ops/gemm/cuda/kbit_stream/multiply.cuh"

namespace dsv4::gemm::kbit_experts {

using XBlocks = kbit_stream::XBlocks<kTokens>;
// The scale bytes of a lane's block in its two rows of each tile.
using ScaleBytes = uint32_t[kGroupTiles][2];

// kSides, kWhole: as in ring.cuh
template <int kSides, bool kWhole>
class Operands {
 public:
  // Requests the scales of the first unit.
  __device__ Operands(const Params& params, const Share& share)
      : params_(params),
        share_(share),
        walk_(params.plan, share),
        tiles_(kSides == 2 ? 2 : params.plan.row_tiles) {
    if (walk_.left == 0) return;
    begin_matrix();
    request_scales();
  }
  // Requests x of the first unit: after the wait for the kernel before.
  __device__ void start() {
    if (walk_.left == 0) return;
    begin_rows();
    request_x();
  }
  // Gives those of a unit and requests those of the next one.
  __device__ void take(ScaleBytes& scale, XBlocks& x) {
    x = x_;
#pragma unroll
    for (int i = 0; i < kGroupTiles; ++i)
#pragma unroll
      for (int r = 0; r < 2; ++r) scale[i][r] = byte_[i][r];
    if (walk_.next_unit(params_.plan, share_)) begin_matrix(), begin_rows();
    if (walk_.left == 0) return;
    request_scales();
    request_x();
  }

 private:
  __device__ void begin_matrix() {
    scale_ = params_.scale + params_.tiles[walk_.item].matrix * params_.scale_matrix_bytes;
  }
  // The lane's row of x; null: the item has fewer.
  __device__ void begin_rows() {
    const cuda::RowTile item = params_.tiles[walk_.item];
    const int token = share_.lane / 4;
    row_ = nullptr;
    if (token >= item.rows) return;
    const int at = item.first_row + token;
    const int64_t row = params_.gather == nullptr ? at : params_.gather[at];
    row_ = params_.x + row * params_.x_stride;
  }

  // Rows and blocks that do not exist repeat the last one: their sums are not stored, or x is zero
  // there.
  __device__ void request_scales() {
    const int first = walk_.row(params_.plan, share_) + share_.lane / 4;
    const int block = walk_.unit * (kUnit / kBlock) + share_.lane % 4;
#pragma unroll
    for (int i = 0; i < kGroupTiles; ++i) {
      if (kSides == 1 && i >= tiles_) break;
      const uint8_t* const from = kSides == 2 && i == 1 ? scale_ + params_.scale_to_up : scale_;
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int row = first + r * 8 + (kSides == 2 ? 0 : i * kTileRows);
        byte_[i][r] = __ldg(
            from + (kWhole ? offset(row, block)
                           : offset(min(row, params_.n - 1), min(block, params_.k / kBlock - 1))));
      }
    }
  }
  __device__ uint32_t offset(int row, int block) const {
    return static_cast<uint32_t>(row) * static_cast<uint32_t>(params_.scale_stride) +
           static_cast<uint32_t>(block);
  }
  __device__ void request_x() {
    const int column = walk_.unit * kUnit + share_.lane % 4 * kBlock;
    x_.load_block(0, row_ + column, row_ != nullptr && (kWhole || column < params_.k));
  }

  const Params& params_;
  const Share& share_;
  Walk walk_;
  const int tiles_;
  const uint8_t* scale_ = nullptr;  // of the item's matrix, that of gate
  const uint16_t* row_ = nullptr;
  ScaleBytes byte_ = {};
  XBlocks x_;
};

}  // namespace dsv4::gemm::kbit_experts
