// Implements Checkpoint::weight(): how stored dtypes become weights.

#include <cmath>

#include "dsv4/base/bits.h"
#include "dsv4/base/error.h"
#include "dsv4/formats/codebook.h"
#include "dsv4/formats/kbit.h"
#include "dsv4/loader/checkpoint.h"

namespace dsv4 {

WeightView Checkpoint::weight(const std::string& prefix, int64_t n, int64_t k) const {
  const std::string name = prefix + ".weight";
  const StoredTensor& stored = find(name);
  WeightView weight{.n = n, .k = k, .data = stored.view};
  switch (stored.view.dtype) {
    case DType::kE4M3:
      return fp8_weight(prefix, weight);
    case DType::kI8:
    case DType::kU8:
      return fp4_weight(prefix, weight);
    case DType::kI32:
      return kbit_weight(prefix, weight);
    case DType::kBF16:
      weight.format = WeightFormat::kBF16;
      break;
    case DType::kF16:
      weight.format = WeightFormat::kF16;
      break;
    default:
      weight.format = WeightFormat::kF32;
  }
  find(name,
       {DType::kF32, DType::kBF16, DType::kF16, DType::kE4M3, DType::kI8, DType::kU8, DType::kI32},
       {n, k});
  return weight;
}

WeightView Checkpoint::fp8_weight(const std::string& prefix, WeightView weight) const {
  const auto [n, k] = std::pair(weight.n, weight.k);
  weight.format = WeightFormat::kFp8Block;
  find(prefix + ".weight", {DType::kE4M3}, {n, k});
  const std::string scale = prefix + ".scale";
  weight.scale = e8m0_scale(scale, {DType::kE8M0, DType::kF32, DType::kU8},
                            {ceil_div(n, kFp8BlockSize), ceil_div(k, kFp8BlockSize)});
  // Otherwise the last scale row of w1 would also apply to the first rows of w3.
  if (const StoredTensor& stored = find(scale); stored.half && n % kFp8BlockSize != 0)
    fail(ErrorCode::kBadInput,
         "{}: {} rows of stacked experts are not a multiple of the {}-row scale blocks ({})", scale,
         n, kFp8BlockSize, stored.file);
  return weight;
}

WeightView Checkpoint::fp4_weight(const std::string& prefix, WeightView weight) const {
  const std::string scale = prefix + ".weight_scale", global = prefix + ".weight_global_scale";
  const bool mx_named = has(scale) && find(scale).view.dtype == DType::kU8;
  const bool nvfp4 = has(scale) && !mx_named;
  const int64_t group = nvfp4 ? kNvfp4Group : kMxfp4Group;
  weight.format = nvfp4 ? WeightFormat::kNvfp4 : WeightFormat::kMxfp4;
  const StoredTensor& stored =
      find(prefix + ".weight", {DType::kI8, DType::kU8}, {weight.n, weight.k / 2});
  if (weight.k % group != 0)
    fail(ErrorCode::kBadInput, "{}.weight: {} needs k to be a multiple of {}, k is {} ({})", prefix,
         name(weight.format), group, weight.k, stored.file);
  if (!nvfp4) {
    weight.scale = e8m0_scale(mx_named ? scale : prefix + ".scale", {DType::kE8M0, DType::kU8},
                              {weight.n, weight.k / group});
    return weight;
  }
  weight.scale = tensor(scale, {DType::kE4M3}, {weight.n, weight.k / group});
  if (has(global)) {
    weight.scale2 = 1 / scalar(global);
    if (!(weight.scale2 > 0) || !std::isfinite(weight.scale2))
      fail(ErrorCode::kBadInput, "{}: its inverse is {}: want a positive number ({})", global,
           weight.scale2, stored.file);
    return weight;
  }
  weight.scale2 = scalar(prefix + ".weight_scale_2");
  check_finite(prefix + ".weight_scale_2");
  requested_.insert(prefix + ".input_scale");
  return weight;
}

WeightView Checkpoint::kbit_weight(const std::string& prefix, WeightView weight) const {
  const auto [n, k] = std::pair(weight.n, weight.k);
  const StoredTensor& stored = find(prefix + ".weight");
  const ConstTensorView& planes = stored.view;
  if (k % kKbitBlock != 0 || planes.rank != 3 || !is_kbit(planes.dim(2)) || planes.dim(0) != n ||
      planes.dim(1) != k / kKbitBlock)
    fail(ErrorCode::kBadInput, "{}.weight: want k-bit planes [{}, {} / {}, 2..5] I32, got {} ({})",
         prefix, n, k, kKbitBlock, to_string(planes), stored.file);
  weight.format = WeightFormat::kKbit;
  weight.bits = static_cast<int>(planes.dim(2));
  weight.data = planes.reshape({n, k / kKbitBlock * weight.bits});
  weight.scale = tensor(prefix + ".scale", {DType::kU8}, {n, k / kKbitBlock});
  weight.codebook = tensor(prefix + ".codebook", {DType::kF32}, {int64_t{1} << weight.bits});
  for (int64_t i = 0; has_data_ && i < weight.codebook.numel(); ++i) {
    if (!std::isfinite(weight.codebook.as<float>()[i]))
      fail(ErrorCode::kBadInput, "{}.codebook: value {} is not finite ({})", prefix, i,
           stored.file);
  }
  weight.e4m3_codebook =
      has_data_ &&
      is_e4m3_codebook({weight.codebook.as<float>(), static_cast<size_t>(weight.codebook.numel())});
  if (!has(prefix + ".scale_2")) return weight;
  weight.scale2 = scalar(prefix + ".scale_2");
  if (!(weight.scale2 > 0) || !std::isfinite(weight.scale2))
    fail(ErrorCode::kBadInput, "{}.scale_2 is {}: want a positive number ({})", prefix,
         weight.scale2, stored.file);
  return weight;
}

ConstTensorView Checkpoint::e8m0_scale(const std::string& name, std::initializer_list<DType> dtypes,
                                       std::initializer_list<int64_t> shape) const {
  ConstTensorView scale = tensor(name, dtypes, shape);
  if (scale.dtype == DType::kU8) scale.dtype = DType::kE8M0;
  return scale;
}

float Checkpoint::scalar(const std::string& name) const {
  const StoredTensor& stored = find(name);
  const ConstTensorView view =
      stored.view.rank == 0 ? tensor(name, {DType::kF32}, {}) : tensor(name, {DType::kF32}, {1});
  return has_data_ ? *view.as<float>() : 1.f;
}

}  // namespace dsv4
