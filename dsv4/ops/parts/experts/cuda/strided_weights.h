// Experts that lie at equal distances in memory, as the portable kernels take them: one matrix of
// every expert (gate, up or down) is a weight whose data, scales and codebooks are each at one
// distance from those of the expert before. What does not lie so runs by gemm/cuda/grouped.h.

#pragma once

#include <span>

#include "dsv4/ops/gemm/cuda/problem.h"
#include "dsv4/ops/gemm/epilogue/gated_step.h"
#include "dsv4/ops/parts/experts/cuda/plan.h"

namespace dsv4::experts_kernel {

using Member = WeightView ExpertWeights::*;

// Returns nullptr, or why the matrices `member` of all experts are not one StridedWeight: formats,
// bits or distances differ. table: one expert or more
const char* reject_weights(std::span<const ExpertWeights> table, Member member);
// Codebooks of this name are equal wherever they are.
bool all_e4m3(std::span<const ExpertWeights> table, Member member);
// The matrices `member` of all experts, which reject_weights() accepts.
// scale2s: [e] in device memory, or null for one expert
gemm::cuda::StridedWeight strided_weight(std::span<const ExpertWeights> table, Member member,
                                         const float* scale2s);
// The step after gate and up, as kernels for any model take it.
inline gemm::GatedStep gated_step_of(const ExpertsArgs& args) {
  static_assert(int(gemm::Gate::kSilu) == int(GateActivation::kSilu) &&
                int(gemm::Gate::kGelu) == int(GateActivation::kGelu) &&
                int(gemm::Gate::kGeluTanh) == int(GateActivation::kGeluTanh));
  return {.limit = args.swiglu_limit, .gate = static_cast<gemm::Gate>(args.activation)};
}
// What the experts multiply their weights with: up to kMaxPlanned of them.
Scale2s scale2s_of(const ExpertStack& stack);

}  // namespace dsv4::experts_kernel
