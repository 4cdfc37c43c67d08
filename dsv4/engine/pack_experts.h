// Experts to kernel images on a device, and the exponents of MXFP4 that kernels with e4m3 operands
// fold into weights, for those who place a model there. CUDA builds.

#pragma once

#include <cuda_runtime.h>

#include <memory>
#include <span>

#include "dsv4/engine/device_weights.h"

namespace dsv4 {

struct ExpertMemory;
struct ExponentRange;

// Staging memory that every job fits into.
int64_t largest_expert(std::span<const ImageJob> jobs);

// Packs the expert whose tensors lie in `staging` as staged_tensors() says into the block of
// weights. Enqueues on `stream`.
void pack_expert(cudaStream_t stream, const ImageJob& job, const std::byte* staging,
                 std::byte* block);

// Images that go to an expert store are packed into memory of a thread's own first, and the ranges
// of their exponents are found there.
class StoredImages {
 public:
  StoredImages(const Model& model, const ExpertStore& store, Device& device);

  // Packs the expert in `staging` into `packed` [packed_bytes()] and copies it to where the job
  // says. Enqueues on `stream`.
  void pack(cudaStream_t stream, const ImageJob& job, const std::byte* staging,
            std::byte* packed) const;
  int64_t packed_bytes() const { return packed_bytes_; }
  // When all are done: find_expert_exponents() for them.
  void set_exponents(Model& model, Device& device) const;

 private:
  int64_t packed_bytes_;
  Buffer ranges_;  // [experts of all layers, 3] ExponentRange of w1, w3 and w2, on the device
};

// Makes the store and points the model at it. Null: all experts fit beside the rest of the model.
// packed: what choose_layouts() changed. Throws kUnsupported when a layer has no images, and what
// plan_expert_memory() and the memories throw.
std::shared_ptr<ExpertStore> make_expert_store(Model& model, Device& device,
                                               const std::vector<PackedExperts>& packed,
                                               const ExpertMemory& memory, const Context& steps);

// Sets the exponents of a layer from the ranges [e, 2] and [e] of its images, or leaves it without.
void set_exponents_of(ExpertImages& images, std::span<const ExponentRange> gate_up,
                      std::span<const ExponentRange> down, Device& device);

// Fills ExpertImages::exponents of each layer, whose images are complete, and empties the view of
// layers with a weight whose range is too large. Not of those in a store. Returns when it is done.
void find_expert_exponents(Model& model, Device& device);

}  // namespace dsv4
