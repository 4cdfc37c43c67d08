// Rows of bf16 or f16, listed by matrix, times k-bit weights in rows (formats/kbit.h) that share a
// codebook, for a few rows of each matrix; or two such products of the same rows and
//
//   out[m] = gated step (epilogue/gated_step.h) of gate and up of x[row(m)]
//
// A weight is read and decoded once for up to 8 rows. kbit_experts/kernel.cuh is the kernel,
// kbit_experts_plan.h how a call is divided. The list of rows is the callers'
// (problem.h: tiles), or is made from offsets.

#pragma once

#include <span>

#include "dsv4/ops/gemm/cuda/problem.h"
#include "dsv4/ops/gemm/epilogue/gated_step.h"

namespace dsv4::gemm::kbit_experts {

inline constexpr int kTileRowsOfX = 8;  // Problem::tile_m, at most

// problem: with tiles of at most kTileRowsOfX rows, in device memory; one projection, or gate and
// up as two, whose n rows of out are those of the gated step then. Its m sets no limit.
// Returns nullptr, or why the kernel cannot compute it.
const char* reject(const Device& device, const cuda::Problem& problem);
// gated: with two projections. list_is_older: the launch before this one waited for the list, and
// let this one start only then.
void run(Device& device, const cuda::Problem& problem, const GatedStep* gated, bool list_is_older);

inline constexpr int64_t kMaxMatrices = 1024;  // of run_sorted()

// out[m] = w_i x[m] for offsets[i] <= m < offsets[i + 1], offsets ascending from 0 to problem.m in
// device memory. problem: one projection, without weights and tiles
const char* reject_sorted(const Device& device, const cuda::Problem& problem,
                          std::span<const WeightView> weights);
void run_sorted(Device& device, const cuda::Problem& problem, std::span<const WeightView> weights,
                const int32_t* offsets);

// The largest relative error of a weight: the codebook and its product with the scale are rounded.
constexpr double rounding(DType x) {
  return x == DType::kF16 ? 0x1p-10 : 0x1p-8;
}

}  // namespace dsv4::gemm::kbit_experts
