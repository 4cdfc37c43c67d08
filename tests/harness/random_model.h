// A small model without files: the official tensors of a config, filled with random numbers that
// keep activations near 1. What it says means nothing, but every layer changes it.

#pragma once

#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "dsv4/base/rng.h"
#include "dsv4/formats/e4m3.h"
#include "dsv4/formats/float16.h"
#include "dsv4/model/model.h"
#include "dsv4/model/tensor_list.h"

namespace dsv4::test {

inline bool ends_with(const std::string& name, const std::string& end) {
  return name.size() >= end.size() && name.compare(name.size() - end.size(), end.size(), end) == 0;
}

// Experts 0 .. k - 1, rotated by the token: distinct, and every expert is used.
inline void fill_hash_table(const TensorView& table, int64_t num_experts) {
  for (int64_t t = 0; t < table.dim(0); ++t) {
    for (int64_t j = 0; j < table.dim(1); ++j) table.row<int64_t>(t)[j] = (t + j) % num_experts;
  }
}

inline void fill_random(const std::string& name, const TensorView& view, Rng& rng) {
  const bool ones = ends_with(name, "norm.weight") || ends_with(name, "_scale");
  const double deviation =
      name == "embed.weight" ? 1.0 : 1.0 / std::sqrt(static_cast<double>(view.dim(view.rank - 1)));
  for (int64_t i = 0; i < view.numel(); ++i) {
    const double value = ones ? 1.0 : deviation * rng.normal();
    switch (view.dtype) {
      case DType::kF32:
        view.as<float>()[i] = static_cast<float>(value);
        break;
      case DType::kBF16:
        view.as<uint16_t>()[i] = f32_to_bf16(static_cast<float>(value));
        break;
      case DType::kE4M3:  // with block scales of 1
        view.as<uint8_t>()[i] = f32_to_e4m3(static_cast<float>(value));
        break;
      case DType::kE8M0:  // 1 for FP8, 1/32 for FP4 codes of up to 6
        view.as<uint8_t>()[i] = name.find(".experts.") == std::string::npos ? 127 : 122;
        break;
      default:  // pairs of FP4 codes
        view.as<uint8_t>()[i] = static_cast<uint8_t>(rng.below(256));
    }
  }
}

// With its drafter where that is wanted, which changes no other tensor.
inline Model random_model(const ModelConfig& config, uint64_t seed,
                          DrafterKind wanted = DrafterKind::kNone,
                          ExpertsPlacement placement = ExpertsPlacement::kSliced) {
  std::map<std::string, TensorMeta> tensors;
  for (const NamedTensor& tensor : official_tensor_list(config, wanted != DrafterKind::kNone))
    tensors.emplace(tensor.name, tensor.meta);
  Rng rng(seed), drafter(seed + 1);
  const auto fill = [&](const std::string& name, const TensorView& view) {
    if (view.dtype == DType::kI64) return fill_hash_table(view, config.num_experts);
    fill_random(name, view, name.starts_with("mtp.") ? drafter : rng);
  };
  return Model(std::make_shared<const ModelSpec>(
                   config, Checkpoint::blank("random model", tensors, fill), placement),
               {}, wanted);
}

}  // namespace dsv4::test
