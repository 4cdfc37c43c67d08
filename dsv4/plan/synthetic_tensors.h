// The large tensors of a synthetic model (synthetic.h): how each is made, by a rule, and where: on
// a device.

#pragma once

#include <memory>
#include <span>
#include <string>

#include "dsv4/model/model.h"

namespace dsv4 {

struct ExpertMemory;  // engine/expert_memory.h

// Makes the large tensors on the device and places the model there: an element depends on the seed,
// the tensor's name and its place in the tensor, so ranks have parts of what one rank has. Throws
// like move_to_device() where it and a cache of so many bytes do not fit; steps as there. CUDA
// builds.
void make_on_device(Model& model, std::shared_ptr<Device> device, uint64_t seed,
                    int64_t cache_bytes = 0, Context steps = {.numerics = Numerics::kExact},
                    const ExpertMemory* outside = nullptr);
// Places each rank of a model on its device so.
void make_on_devices(Model& model, std::span<const std::shared_ptr<Device>> devices, uint64_t seed,
                     int64_t cache_bytes = 0, Context steps = {.numerics = Numerics::kExact},
                     const ExpertMemory* outside = nullptr);

// Fills every row of the caches with what a forward pass could have written: a context of any
// length for decode benchmarks, without the prefill. CUDA builds.
void fill_caches(Device& device, std::span<const LayerCache> caches, uint64_t seed);

// How a large tensor is made.
enum class SyntheticKind : uint8_t {
  kHostCopy,  // it has its contents already
  kNormal,    // F32, BF16: normal with this deviation
  kE4M3,      // normal codes of deviation kE4M3Deviation
  kBits,      // uniform bits: e2m1 pairs, k-bit planes
  kBytes      // one byte for all: block scales
};
struct SyntheticRule {
  SyntheticKind kind = SyntheticKind::kHostCopy;
  float deviation = 0;
  uint8_t byte = 0;
};
inline constexpr float kE4M3Deviation = 56.f;   // the largest code is 8 deviations away
inline constexpr float kNvfp4Scale2 = 0x1p-8f;  // brings block scales to normal numbers of E4M3

// For a tensor of a checkpoint, by its official name. `weight` is the one that a ".scale" or
// ".weight_scale" belongs to, `book` the values of its codebook if it is a k-bit weight.
SyntheticRule synthetic_rule(const std::string& name, const TensorMeta& meta,
                             const TensorMeta* weight, std::span<const float> book = {});

}  // namespace dsv4
