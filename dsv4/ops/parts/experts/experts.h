// Expert feed-forward with clamped SwiGLU and ordered combine (docs/spec/dsv4.md 7.2 - 7.4).
//
//   g = w1 x, u = w3 x                                  kOfficial: both rounded to bf16
//   u = clamp(u, -limit, limit), g = min(g, limit)
//   h = weight * (a(g) * u)                             f32; kOfficial: rounded to bf16
//   acc[t] += w2 h                                      kOfficial: w2 h rounded to bf16 first
//   acc[t] += addend[t]                                 last
//
// Under kOfficial, x and h pass through Q8 (groups of 128) wherever the weight format is quantized.
// Experts are added in ascending order of their ids whatever the order of `experts`, so acc does
// not depend on the router's order. A shared expert is a call without ids and weights: one expert,
// weight 1. The activation a is silu in DeepSeek-V4; other models have others.

#pragma once

#include "dsv4/ops/op.h"
#include "dsv4/ops/parts/experts/expert_stack.h"
#include "dsv4/tensor/tensor.h"

namespace dsv4 {

enum class GateActivation : uint8_t {
  kSilu,      // v / (1 + e^-v)
  kGelu,      // v (1 + erf(v / sqrt(2))) / 2
  kGeluTanh,  // v (1 + tanh(sqrt(2 / pi) (v + 0.044715 v^3))) / 2
};

struct ExpertsArgs {
  ConstTensorView x;  // [t, d] f32|bf16|f16
  ExpertStack stack;  // e experts of equal shape
  // Both empty: every token goes to the only expert of the stack, with weight 1.
  ConstTensorView experts;   // [t, k] I32 in [0, e), distinct or not
  ConstTensorView weights;   // [t, k] f32
  float swiglu_limit = 0.f;  // 0: no clamp
  GateActivation activation = GateActivation::kSilu;
  TensorView acc;            // [t, d] f32
  bool add = true;           // false: acc is overwritten
  ConstTensorView addend{};  // [t, d] f32|bf16, added to acc after all experts; empty: nothing
  // Under kExact: implementations may nevertheless round weights and h to the type of x, bf16 or
  // f16, for tensor cores (Impl::operand_rounding).
  bool may_round_operands = false;
};

// Experts of one token: k, or 1 without ids.
inline int64_t slots(const ExpertsArgs& args) {
  return args.experts.empty() ? 1 : args.experts.dim(1);
}

// Why implementations for DeepSeek-V4 alone refuse a call; null: they do not.
inline const char* reject_other_models(const ExpertsArgs& args) {
  if (args.activation != GateActivation::kSilu) return "the activation is not silu";
  return args.x.dtype == DType::kF16 ? "x is f16" : nullptr;
}

extern const Op<ExpertsArgs> experts;

// The layout in which the implementations that take calls in this context read the experts best:
// kernel images where there is a kernel for them and all of the weights have one.
WeightLayout best_layout(const Context& context, std::span<const ExpertWeights> file);

// In CUDA builds. Whether this context can use the implementations for kernel images, whatever the
// experts are.
bool reads_images(const Context& context);
bool sm90_few_takes(const ExpertImages& images);   // its formats and shapes
bool sm90_wide_takes(const ExpertImages& images);  // its shapes and codebooks
// nullptr: the implementation sm90_few_e4m3 takes the call; else why not.
const char* reject_experts_e4m3(const Context& context, const ExpertsArgs& args);

// experts.cost() reads the ids. Where they are not known, as in a dry run: the cost that is
// expected if each token chooses k distinct experts and all choices are equally likely.
Cost expected_cost(const ExpertsArgs& args);
// Bytes of the experts that t tokens then read.
double expected_weight_bytes(const ExpertStack& stack, int64_t t, int64_t k);

}  // namespace dsv4
