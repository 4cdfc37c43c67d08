#include "dsv4/ops/parts/experts/cuda/strided_weights.h"

#include <algorithm>

#include "dsv4/ops/gemm/cuda/strided.h"

namespace dsv4::experts_kernel {

using gemm::cuda::StridedWeight;

static auto matrices(std::span<const ExpertWeights> table, Member member) {
  return [=](int64_t e) -> const WeightView& { return table[static_cast<size_t>(e)].*member; };
}

const char* reject_weights(std::span<const ExpertWeights> table, Member member) {
  return gemm::cuda::reject_strided(std::ssize(table), matrices(table, member));
}

bool all_e4m3(std::span<const ExpertWeights> table, Member member) {
  return gemm::cuda::all_e4m3(std::ssize(table), matrices(table, member));
}

StridedWeight strided_weight(std::span<const ExpertWeights> table, Member member,
                             const float* scale2s) {
  return gemm::cuda::strided(std::ssize(table), matrices(table, member), scale2s);
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
