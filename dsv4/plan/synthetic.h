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

#include <optional>
#include <string>
#include <utility>

#include "dsv4/convert/recipe.h"
#include "dsv4/plan/synthetic_tensors.h"

namespace dsv4 {

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
                      ShardId shard = {}, bool alone = false,
                      ExpertsPlacement placement = ExpertsPlacement::kSliced);

}  // namespace dsv4
