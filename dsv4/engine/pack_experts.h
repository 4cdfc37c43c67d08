// Experts to kernel images on a device, and the exponents of MXFP4 that kernels with e4m3 operands
// fold into weights, for those who place a model there. CUDA builds.

#pragma once

#include <cuda_runtime.h>

#include <span>

#include "dsv4/engine/device_weights.h"

namespace dsv4 {

// Staging memory that every job fits into.
int64_t largest_expert(std::span<const ImageJob> jobs);

// Packs the expert whose tensors lie in `staging` as staged_tensors() says into the block of
// weights. Enqueues on `stream`.
void pack_expert(cudaStream_t stream, const ImageJob& job, const std::byte* staging,
                 std::byte* block);

// Fills ExpertImages::exponents of each layer, whose images are complete, and empties the view of
// layers with a weight whose range is too large. Returns when it is done.
void find_expert_exponents(Model& model, Device& device);

}  // namespace dsv4
