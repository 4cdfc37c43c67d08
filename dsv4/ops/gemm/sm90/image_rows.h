// Rows of bf16 times kernel images (formats/kbit_image.h) whose codebook is on the e4m3 grid, or
// FP4, on Hopper: for a few rows of each matrix. image_rows/kernel.cuh is the kernel.
//
//   rows          out[m] = w_e x[m]
//   gate and up   h[m] = gated step (epilogue/gated_step.h) of w1_e x[row(m)] and w3_e x[row(m)]
//
// A bf16 number is the sum of two e4m3 numbers, so x takes two columns of e4m3 products and is not
// rounded. A weight is read and decoded once for up to 4 rows (NVFP4: 2). Products of lists of
// matrices are launched by image_rows/params.h.
//
// What it does not do: f16 and f32 rows, K = 5, codebooks off the grid.

#pragma once

#include "dsv4/device/device.h"
#include "dsv4/formats/weight.h"
#include "dsv4/tensor/tensor.h"

namespace dsv4::gemm::image_rows {

// Returns nullptr, or why there is no kernel for images of this weight, whose data is the image.
const char* reject_weight(const WeightView& weight);
// Returns nullptr, or why there is no kernel for rows [m, k] like these.
const char* reject_rows(const Device& device, const ConstTensorView& x);

// out = x w^T, for any number of rows. out: [m, n] f32|bf16|f16
void run_dense(Device& device, const WeightView& weight, const ConstTensorView& x,
               const TensorView& out);

}  // namespace dsv4::gemm::image_rows
