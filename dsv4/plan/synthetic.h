// Full-size models with random weights, generated on the device: for benchmarks and plans without a
// download.
//
// The statistics are those of a network that works: every matrix has weights of standard deviation
// 1/sqrt(k), so activations stay near 1; norms are 1, the residual mix is near the identity, router
// logits have standard deviation 1, so tokens spread over experts; hash layers route each token to
// distinct random experts. The text that such a model generates is meaningless.
//
// Experts may be unequally popular, as they are in a real network: the expert of rank r of a layer
// is chosen in proportion to r^-skew, about (learned layers get a bias for it) or exactly (hash
// layers). `dsv4 bench decode --ops` counts what a step then reads.

#pragma once

#include <memory>
#include <optional>
#include <span>
#include <utility>

#include "dsv4/convert/recipe.h"
#include "dsv4/model/model.h"

namespace dsv4 {

struct ExpertMemory;  // engine/expert_memory.h

// What a synthetic model is stored as: a release whose experts are MXFP4, or NVFP4, and what a
// recipe makes of it.
struct SyntheticFormats {
  Recipe recipe;
  WeightFormat experts = WeightFormat::kMxfp4;

  SyntheticFormats(Recipe rules = {}, WeightFormat released = WeightFormat::kMxfp4)
      : recipe(std::move(rules)), experts(released) {}
};
// What `--experts` names beside a recipe's formats: "mxfp4" and "nvfp4"; else nothing.
std::optional<WeightFormat> released_format(const std::string& text);

// Config and tensors of "flash" or "pro" as the formats store them, codebooks included: k-bit
// kernels differ by codebook, so "k3" measures what `dsv4 quantize --experts k3` writes and
// "k3-e4m3" another kernel. The first `layers` layers (0: all). Small tensors get their contents
// here, large ones on the device. wanted: with this drafter (released_config), whose weights are as
// random; it changes no other tensor. shard: a rank 0 comes with the others of its world, unless
// alone.
Model synthetic_model(const std::string& release, const SyntheticFormats& formats, int64_t layers,
                      uint64_t seed, double skew = 0, DrafterKind wanted = DrafterKind::kNone,
                      ShardId shard = {}, bool alone = false);

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
