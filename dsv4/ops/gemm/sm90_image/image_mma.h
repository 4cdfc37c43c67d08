// The tensor core kernels of mma.cuh for k-bit and FP4 weights in their kernel image
// (formats/kbit_image.h).
//
// The image has one matrix for all projections of a problem: the rows of gate and up alternate in
// groups of 8. Values are the same as those of the flat layout: codebook * scale, rounded to bf16.

#pragma once

#include "dsv4/formats/codebook.h"
#include "dsv4/formats/kbit_image.h"
#include "dsv4/ops/gemm/cuda/problem.h"

namespace dsv4::gemm::sm90_image {

struct ImageProblem {
  // x is bf16; `n` rows of the image's weights for each projection; `weight` is not used.
  cuda::Problem problem;
  const std::byte* images = nullptr;  // [matrices]
  int64_t image_bytes = 0;            // from one matrix to the next
  Codebook codebook;                  // of all matrices, antisymmetric
  ImageScale scale = ImageScale::kE4M4;
  // scale2[m * scale2_stride + p] belongs to projection p of matrix m.
  const float* scale2 = nullptr;
  int64_t scale2_stride = 0;
};

// Tiles of 32, 64 or 128 rows.
void run_image_mma(Device& device, const ImageProblem& problem);

}  // namespace dsv4::gemm::sm90_image
