// Matrices that lie at equal distances in memory as one StridedWeight (problem.h).
// at(i) is matrix i of `count`, a WeightView.

#pragma once

#include "dsv4/ops/gemm/cuda/problem.h"

namespace dsv4::gemm::cuda {

inline int64_t distance(const ConstTensorView& from, const ConstTensorView& to) {
  return from.empty() || to.empty() ? 0 : to.data - from.data;
}

// Codebooks of this name are equal wherever they are.
template <class At>
bool all_e4m3(int64_t count, const At& at) {
  for (int64_t i = 0; i < count; ++i)
    if (!at(i).e4m3_codebook) return false;
  return true;
}

// Returns nullptr, or why the matrices are not one StridedWeight.
template <class At>
const char* reject_strided(int64_t count, const At& at) {
  const WeightView &first = at(0), &second = at(count > 1 ? 1 : 0);
  const bool one_codebook = all_e4m3(count, at);
  for (int64_t i = 0; i < count; ++i) {
    const WeightView& w = at(i);
    const auto even = [&](ConstTensorView WeightView::*tensor) {
      return distance(first.*tensor, w.*tensor) == i * distance(first.*tensor, second.*tensor) &&
             (w.*tensor).row_stride() == (first.*tensor).row_stride();
    };
    if (w.format != first.format || w.bits != first.bits || w.scale.dtype != first.scale.dtype)
      return "experts differ in format";
    if (!even(&WeightView::data) || !even(&WeightView::scale) ||
        !(one_codebook || even(&WeightView::codebook)))
      return "experts are not evenly spaced";
  }
  return nullptr;
}

// scale2s: [count] in device memory, or null for one matrix
template <class At>
StridedWeight strided(int64_t count, const At& at, const float* scale2s) {
  const WeightView& first = at(0);
  StridedWeight weight = single_matrix(first);
  if (count > 1) {
    const WeightView& second = at(1);
    weight.matrix_bytes = distance(first.data, second.data);
    weight.scale_matrix_bytes = distance(first.scale, second.scale);
    if (!all_e4m3(count, at))
      weight.codebook_stride =
          distance(first.codebook, second.codebook) / static_cast<int64_t>(sizeof(float));
  }
  if (first.format == WeightFormat::kNvfp4 || first.format == WeightFormat::kKbit)
    weight.scale2s = scale2s;
  return weight;
}

}  // namespace dsv4::gemm::cuda
