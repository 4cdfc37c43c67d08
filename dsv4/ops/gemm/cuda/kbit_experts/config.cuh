// Parameters and shared memory of the kernel of kbit_experts.h, and how a warp walks over its part
// of a call.

#pragma once

#include <cstdint>

#include "dsv4/device/math.cuh"
#include "dsv4/device/ptx/shared_memory.cuh"
#include "dsv4/ops/gemm/cuda/kbit_experts.h"
#include "dsv4/ops/gemm/cuda/kbit_experts_plan.h"

namespace dsv4::gemm::kbit_experts {

// [2]: of gate and up, or of one weight
struct Params {
  const unsigned char* codes = nullptr;      // [matrices][n, k / 32 * K] words, those of gate
  const uint8_t* scale = nullptr;            // [matrices][n, k / 32] E4M4
  int64_t codes_to_up = 0, scale_to_up = 0;  // bytes from those of gate to those of up
  const float* scale2s[2] = {};              // [matrices]; null: scale2
  float scale2[2] = {1, 1};                  // of every matrix
  const float* codebook = nullptr;           // [2^K]
  const uint16_t* x = nullptr;               // [rows, k] bf16 or f16, rows 16-byte aligned
  const int32_t* gather = nullptr;           // row of x for each row of out; null: the same
  const cuda::RowTile* tiles = nullptr;      // the items
  const int32_t* num_tiles = nullptr;
  void* out = nullptr;                      // [m, n]
  int64_t matrix_bytes = 0, row_bytes = 0;  // from codes of one matrix, one row to the next
  int64_t scale_matrix_bytes = 0, scale_stride = 0;
  int64_t x_stride = 0, out_stride = 0;  // elements
  DType out_dtype = DType::kF32;
  bool whole = false;  // all blocks and units are, and rows of codes are 16-byte aligned
  bool list_is_older = false;
  int n = 0, k = 0;
  GatedStep gated;  // its limit is not 0
  Plan plan;
};

// The dynamic shared memory of a CTA.
template <int K>
struct Memory {
  static constexpr Layout kAt{K};
  unsigned char* base = ptx::dynamic_smem();

  __device__ unsigned char* table() const { return base; }
  // [slots][16 rows][4 blocks][K] words of a warp
  __device__ unsigned char* ring(int warp) const {
    return base + kAt.ring + warp * kbit_stream::slots(K) * kbit_stream::slot_bytes(K);
  }
  // [kSumsPitch] of [2][kWarps][kTokens]: of the tiles of a block; blocks take turns
  __device__ float* sums(int turn, int warp, int token) const {
    return reinterpret_cast<float*>(base + kAt.sums + turn * Layout::kSumsBytes) +
           (warp * kTokens + token) * Layout::kSumsPitch;
  }
  __device__ uint16_t* book() const { return reinterpret_cast<uint16_t*>(base + kAt.book); }
};

// What a warp has: in all blocks of its CTA the rows of its row group, the units of its k group.
struct Share {
  int warp, lane;
  int row_group, k_group;
  int first_unit, end_unit;
  int first_block, blocks;

  __device__ Share(const Plan& plan, int items, int cta)
      : warp(static_cast<int>(threadIdx.x) / kWarp),
        lane(static_cast<int>(threadIdx.x) % kWarp),
        row_group(warp / plan.k_groups),
        k_group(warp % plan.k_groups),
        first_unit(plan.first_unit(k_group)),
        end_unit(plan.first_unit(k_group + 1)),
        first_block(plan.first_block(items, cta)),
        blocks(plan.first_block(items, cta + 1) - first_block) {}
};

// A unit of a block. The list is read where an item begins.
struct Walk {
  int item, row_block, unit, left;  // blocks that are left, with this one

  __device__ Walk(const Plan& plan, const Share& share)
      : item(share.first_block / plan.row_blocks),
        row_block(share.first_block % plan.row_blocks),
        unit(share.first_unit),
        left(share.blocks) {}
  // The first row of the matrix for the warp.
  __device__ int row(const Plan& plan, const Share& share) const {
    return row_block * plan.block_rows() + share.row_group * plan.group_rows();
  }
  // From a block to the next one; true: another item begins with it.
  __device__ bool next_block(const Plan& plan) {
    --left;
    if (++row_block < plan.row_blocks) return false;
    row_block = 0, ++item;
    return left > 0;
  }
  // From a unit to the next one: true as above, where it was the last one of its block.
  __device__ bool next_unit(const Plan& plan, const Share& share) {
    if (++unit < share.end_unit) return false;
    unit = share.first_unit;
    return next_block(plan);
  }
};

}  // namespace dsv4::gemm::kbit_experts
