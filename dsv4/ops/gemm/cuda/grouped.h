// Products of rows that are sorted by matrix with the matrices of a list, each of which may be
// anywhere in memory and in a format of its own:
//
//   out[m] = w_i x[row(m)]    for offsets[i] <= m < offsets[i + 1]
//
// The offsets are in device memory and are never read by the host: a launch lists the tiles. There
// are two launches for each format that occurs, and again for every kListed matrices of it. A
// matrix without rows costs an entry of the list.

#pragma once

#include <span>

#include "dsv4/ops/gemm/cuda/problem.h"

namespace dsv4::gemm::cuda {

inline constexpr int kListed = 256;  // matrices of one launch: they are its arguments

// f32 arithmetic (run_gemv), or tensor cores (run_mma).
enum class Kernels { kGemv, kMma };

// problem: one projection, without weights and tiles; its m is offsets[weights.size()]
// weights: [i] of equal n and k; offsets: [i + 1], ascending from 0
void run_grouped(Device& device, const Problem& problem, std::span<const WeightView> weights,
                 const int32_t* offsets, Kernels kernels);
// Returns nullptr, or why the tensor core kernels cannot take one of the weights.
const char* reject_grouped_mma(const Problem& problem, std::span<const WeightView> weights);

}  // namespace dsv4::gemm::cuda
