// A list of weight products on the CPU, in one parallel region (gemm.h). Arguments are not checked.

#pragma once

#include <span>

#include "dsv4/formats/weight.h"
#include "dsv4/ops/gemm/gemm.h"
#include "dsv4/ops/op.h"
#include "dsv4/tensor/tensor.h"

namespace dsv4::gemm::cpu {

// out = x w^T; with `gather`, row m of out takes row gather[m] of x.
struct GemmJob {
  ConstTensorView x;                // [rows, k] f32|bf16|E4M3; rows may be strided
  ConstTensorView x_scale;          // [rows, ceil(k / 128)] E8M0, only with E4M3
  WeightView weight;                // [n, k]
  TensorView out;                   // [m, n] f32|bf16; rows may be strided
  const int32_t* gather = nullptr;  // [m]; null: row m of x, which has m rows then
};

// Runs all jobs. The bits of an element of out depend on its row of x and its row of the weight
// alone: not on m, on the other jobs, or on the number of threads.
void run_gemms(std::span<const GemmJob> jobs);

// What run_gemms() takes for jobs whose activations are `rows` rows of `k` columns in all.
HostBytes gemm_bytes(int64_t rows, int64_t k);

}  // namespace dsv4::gemm::cpu
