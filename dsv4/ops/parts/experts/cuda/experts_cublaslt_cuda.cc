// The implementation cublaslt_fp8 of experts.h: the shared expert of a prompt, whose products are
// those of linear.h with FP8 activations and weights. Q8 of x, gate, up, SwiGLU with Q8 of h, down,
// sum.

#include "dsv4/base/bits.h"
#include "dsv4/device/device.h"
#include "dsv4/ops/gemm/gemm.h"
#include "dsv4/ops/parts/experts/cuda/steps.h"
#include "dsv4/ops/parts/experts/experts.h"
#include "dsv4/ops/parts/linear/linear.h"
#include "dsv4/ops/parts/quant/quant.h"

namespace dsv4::experts_kernel::cublaslt_fp8 {
namespace {

constexpr int64_t kMinTokens = 64;  // with fewer, more launches cost more than tensor cores save

// Activations as codes and scales. Empty data: only shapes, for a reject function.
struct Q8 {
  TensorView codes, scales;

  static Q8 shapes(int64_t t, int64_t k) {
    return {{TensorMeta::contiguous(DType::kE4M3, {t, k}), nullptr},
            {TensorMeta::contiguous(DType::kE8M0, {t, ceil_div(k, kActivationGroup)}), nullptr}};
  }
  static Q8 in(Scratch& scratch, int64_t t, int64_t k) {
    return {scratch.take(DType::kE4M3, {t, k}),
            scratch.take(DType::kE8M0, {t, ceil_div(k, kActivationGroup)})};
  }
  LinearArgs times(const WeightView& weight, const TensorView& out) const {
    return {.x = codes, .x_scale = scales, .weight = weight, .out = out};
  }
};

// The implementations that this one is made of.
const Impl<LinearArgs>& product() {
  return impl_of(linear, "cublaslt_fp8");
}
const Impl<QuantizeQ8Args>& quantize() {
  return impl_of(quantize_q8, "cuda");
}

}  // namespace

const char* reject(const Context& context, const ExpertsArgs& args) {
  if (!args.experts.empty() || !args.stack.is_file()) return "for the shared expert";
  if (const char* why = reject_other_models(args)) return why;
  if (context.numerics == Numerics::kExact) return "sums of tensor cores are not exact f32";
  const int64_t t = args.x.dim(0), d = args.x.dim(1), inner = args.stack.inner();
  if (t < kMinTokens) return "for 64 tokens or more";
  const ExpertWeights& expert = args.stack.file()[0];
  const TensorMeta gate_up = TensorMeta::contiguous(DType::kBF16, {t, 2 * inner});
  const TensorView half = TensorView(gate_up, nullptr).slice(1, 0, inner);
  const TensorView y(TensorMeta::contiguous(DType::kBF16, {t, d}), nullptr);
  for (const WeightView* weight : {&expert.w1, &expert.w3}) {
    if (const char* why = product().reject(context, Q8::shapes(t, d).times(*weight, half)))
      return why;
  }
  return product().reject(context, Q8::shapes(t, inner).times(expert.w2, y));
}

void run(const Context& context, const ExpertsArgs& args) {
  Device& device = *context.device;
  Scratch& scratch = device.workspace();
  const Scratch::Scope scope(scratch);
  const int64_t t = args.x.dim(0), d = args.x.dim(1), inner = args.stack.inner();
  const ExpertWeights& expert = args.stack.file()[0];
  const Q8 x = Q8::in(scratch, t, d), h = Q8::in(scratch, t, inner);
  const TensorView gate_up = scratch.take(DType::kBF16, {t, 2 * inner});
  const TensorView y = scratch.take(DType::kBF16, {t, d});
  quantize().run(context, {.x = args.x, .codes = x.codes, .scales = x.scales});
  product().run(context, x.times(expert.w1, gate_up.slice(1, 0, inner)));
  product().run(context, x.times(expert.w3, gate_up.slice(1, inner, 2 * inner)));
  experts_swiglu_q8(
      device,
      {.gate_up = gate_up, .limit = args.swiglu_limit, .codes = h.codes, .scales = h.scales});
  product().run(context, h.times(expert.w2, y));
  experts_combine(device, {.y = y, .add = args.add, .addend = args.addend, .acc = args.acc});
}

}  // namespace dsv4::experts_kernel::cublaslt_fp8
