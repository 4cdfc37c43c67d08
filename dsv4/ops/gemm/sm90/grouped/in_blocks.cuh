// The main loop of the grouped kernel with e4m3 operands and scales of blocks of 32 columns: sums
// of 128 image rows x kN columns of a tile over K, with the bits of the kernels for few tokens
// (experts_e4m3), so that a pair has the same bits in any batch.
//
//   part[b]    = products of the 32 columns of block b               by the tensor core
//   sums[b%4] += part[b] * (scale of row and block * factor of column and group of 128)
//   total     += (sums[0] + sums[1]) + (sums[2] + sums[3])           after the chunks j, j + 4, ..
//
// Chunks (256 columns) come in the order of visit_chunks(): those of j = 0 first, then of 1, 2, 3.
// Warp w of the consumers multiplies strip w of the pass. Totals are read and written four times in
// a pass, and lie in shared memory.
//
// Bound: instructions. A block of 32 columns takes a lane kN / 2 products of factors, kN / 2 FMAs
// and about 26 others, where the tensor cores take kN / 2 clocks. A round of products and a wait
// for them costs about a hundred clocks whatever it multiplies, so a round has as many products as
// registers allow. Registers at kN = 32: 64 sums, 64 products, 32 of A, 6 to 8 words, scales,
// addresses; at 48: 96, 48 and 16.

#pragma once

#include "dsv4/ops/gemm/sm90/grouped/consumer.cuh"
#include "dsv4/ops/gemm/weights/kbit_image_blocks.cuh"

namespace dsv4::gemm::grouped {

inline constexpr int kBlockSums = 4;  // blocks of a group of 128

template <int kN>
using SumsOfBlocks = float[kBlockSums][kN / 2];

// Blocks of a round, whose products are under way together.
template <int kN>
inline constexpr int kRoundBlocks = kN <= 32 ? kBlockSums : kBlockSums / 2;
template <int kN>
using Products = float[kRoundBlocks<kN>][kN / 2];
template <int kN>
using Fragments = uint32_t[kRoundBlocks<kN>][4];

// block: the first of the round in its chunk; codes: the warp's strip of the chunk
template <int kN, class Weights>
__device__ inline void decode_round(const typename Weights::Table& table,
                                    const unsigned char* codes, int block, Weights& unit,
                                    Fragments<kN>& a) {
  if (block % kBlockSums == 0) unit.load(codes, block / kBlockSums);
#pragma unroll
  for (int b = 0; b < kRoundBlocks<kN>; ++b) {
    unit.decode(table, block % kBlockSums + b, a[b]);
    ptx::wgmma_fence_operand(a[b]);
  }
}

// block: as above. factors: those of column 2 (lane % 4) of each eight, and of the one after it
template <int kN, class Scales>
__device__ inline void promote_round(Products<kN>& products, const Scales& scales, int block,
                                     const float* factors, SumsOfBlocks<kN>& sums) {
#pragma unroll
  for (int b = 0; b < kRoundBlocks<kN>; ++b) {
    const int in_group = block % kBlockSums + b;
    float(&part)[kN / 2] = products[b];
    ptx::wgmma_fence_operand(part);
    const float2 scale = scales.of(in_group);
#pragma unroll
    for (int n = 0; n < kN / 8; ++n) {
      const float2 two = *reinterpret_cast<const float2*>(factors + 8 * n);
      float* const to = sums[in_group] + 4 * n;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float factor = (i < 2 ? scale.x : scale.y) * (i % 2 == 0 ? two.x : two.y);
        to[i] = fmaf(part[4 * n + i], factor, to[i]);
      }
    }
  }
}

template <int kN>
__device__ inline void clear(SumsOfBlocks<kN>& sums) {
#pragma unroll
  for (auto& of_block : sums)
#pragma unroll
    for (float& sum : of_block) sum = 0;
}

// total: of a pass
template <int kN, class Weights>
__device__ void multiply_in_blocks(int chunks, const typename Weights::Table& table,
                                   Shared<Weights>& shared, Place& at, float (&total)[kN / 2]) {
  constexpr int kUnitBlocks = kUnitColumns / kProductColumns, kRound = kRoundBlocks<kN>,
                kRounds = kUnitBlocks / kRound, kStep = step_bytes(XForm::kE4m3, kN),
                kConsumers = kConsumerWarps * kWarp;
  static_assert(Shared<Weights>::x_steps(kN) == kUnitBlocks / kBlockSums && kRounds % 2 == 0);
  const int strip = static_cast<int>(threadIdx.x) / kWarp * Weights::kSlabBytes;
  float* const totals = shared.totals + threadIdx.x;
  Weights unit;
  Fragments<kN> a[2];  // of this round and of the next one
  SumsOfBlocks<kN> sums;
  clear<kN>(sums);
  int group = 0, left = (chunks + kChunkGroups - 1) / kChunkGroups;  // chunks of the group to come
  shared.code_full[at.codes.stage].wait(at.codes.phase);
  decode_round<kN>(table, shared.codes[at.codes.stage] + strip, 0, unit, a[0]);
#pragma unroll 1
  for (int chunk = 0; chunk < chunks; ++chunk) {
    const unsigned char* const x = shared.x[at.x.stage];
    shared.x_full[at.x.stage].wait(at.x.phase);
#pragma unroll
    for (int r = 0; r < kRounds; ++r) {
      const int block = r * kRound;
      const auto scales = unit.scales();
      const unsigned char* const rows = x + block / kBlockSums * kStep;
      const uint64_t of_rows = ptx::make_smem_desc_128B(ptx::smem_address(rows));
      Products<kN> products;
      ptx::wgmma_fence();
#pragma unroll
      for (int b = 0; b < kRound; ++b)
        ptx::Wgmma<typename Weights::Operand, kN>::run(
            products[b], a[r % 2][b],
            ptx::advance_desc(of_rows,
                              static_cast<uint32_t>(kProductColumns * (block % kBlockSums + b))),
            0);
      ptx::wgmma_commit_group();
      if (r < kRounds - 1) {
        decode_round<kN>(table, shared.codes[at.codes.stage] + strip, block + kRound, unit,
                         a[(r + 1) % 2]);
      } else {
        __syncwarp();  // all lanes have read the codes
        arrive_once(shared.code_empty[at.codes.stage]);
        at.codes.next(Shared<Weights>::kCodeStages);
        if (chunk + 1 < chunks) {
          shared.code_full[at.codes.stage].wait(at.codes.phase);
          decode_round<kN>(table, shared.codes[at.codes.stage] + strip, 0, unit, a[0]);
        }
      }
      ptx::wgmma_wait_group<0>();
      promote_round<kN>(
          products, scales, block,
          reinterpret_cast<const float*>(rows + kN * kSwizzledBytes) + threadIdx.x % 4 * 2, sums);
    }
    __syncwarp();  // all lanes have read the factors
    arrive_once(shared.x_empty[at.x.stage]);
    at.x.next(Shared<Weights>::kXStages);
    if (--left > 0) continue;
#pragma unroll
    for (int i = 0; i < kN / 2; ++i) {
      const float before = group == 0 ? 0 : totals[i * kConsumers];
      totals[i * kConsumers] = before + ((sums[0][i] + sums[1][i]) + (sums[2][i] + sums[3][i]));
    }
    clear<kN>(sums);
    ++group;
    left = (chunks + kChunkGroups - 1 - group) / kChunkGroups;
  }
#pragma unroll
  for (int i = 0; i < kN / 2; ++i) total[i] = totals[i * kConsumers];
}

}  // namespace dsv4::gemm::grouped
