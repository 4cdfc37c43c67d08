#include "dsv4/ops/parts/experts/cuda/strided_weights.h"

#include <algorithm>

namespace dsv4::experts_kernel {

using gemm::cuda::StridedWeight;

static int64_t distance(const ConstTensorView& from, const ConstTensorView& to) {
  return from.empty() || to.empty() ? 0 : to.data - from.data;
}

const char* reject_weights(std::span<const ExpertWeights> table, Member member) {
  const WeightView& first = table[0].*member;
  const WeightView& second = table[table.size() > 1 ? 1 : 0].*member;
  for (size_t e = 0; e < table.size(); ++e) {
    const WeightView& w = table[e].*member;
    const auto i = static_cast<int64_t>(e);
    const auto even = [&](ConstTensorView WeightView::*tensor) {
      return distance(first.*tensor, w.*tensor) == i * distance(first.*tensor, second.*tensor) &&
             (w.*tensor).row_stride() == (first.*tensor).row_stride();
    };
    if (w.format != first.format || w.bits != first.bits || w.scale.dtype != first.scale.dtype)
      return "experts differ in format";
    if (!even(&WeightView::data) || !even(&WeightView::scale) || !even(&WeightView::codebook))
      return "experts are not evenly spaced";
  }
  return nullptr;
}

StridedWeight strided_weight(std::span<const ExpertWeights> table, Member member,
                             const float* scale2s) {
  const WeightView& first = table[0].*member;
  StridedWeight weight = gemm::cuda::single_matrix(first);
  if (table.size() > 1) {
    const WeightView& second = table[1].*member;
    weight.matrix_bytes = distance(first.data, second.data);
    weight.scale_matrix_bytes = distance(first.scale, second.scale);
    weight.codebook_stride =
        distance(first.codebook, second.codebook) / static_cast<int64_t>(sizeof(float));
  }
  if (first.format == WeightFormat::kNvfp4 || first.format == WeightFormat::kKbit)
    weight.scale2s = scale2s;  // null for one expert, whose scale2 is in weight.scale2
  return weight;
}

Scale2s scale2s_of(const ExpertStack& stack) {
  Scale2s all;
  for (size_t e = 0; e < std::min<size_t>(stack.file().size(), kMaxPlanned); ++e) {
    all.w1[e] = stack.file()[e].w1.scale2;
    all.w3[e] = stack.file()[e].w3.scale2;
    all.w2[e] = stack.file()[e].w2.scale2;
  }
  return all;
}

}  // namespace dsv4::experts_kernel
