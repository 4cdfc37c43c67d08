// The implementations cuda and parts of halves.h. cuda, for experts as stored in files, in f32
// arithmetic: plan, Q8, products of gemm/cuda/grouped.h, SwiGLU or the sum over the experts of a
// token. parts, for a shared expert: products of linear.h. And the sum alone.

#include <vector>

#include "dsv4/ops/gemm/cuda/grouped.h"
#include "dsv4/ops/gemm/cuda/rows_for_split.h"
#include "dsv4/ops/parts/experts/cuda/plan.h"
#include "dsv4/ops/parts/experts/cuda/steps.h"
#include "dsv4/ops/parts/experts/halves.h"
#include "dsv4/ops/parts/linear/projection.h"

namespace dsv4 {
namespace {

using gemm::cuda::Problem;
using Member = WeightView ExpertWeights::*;

const char* reject_stack(const ExpertStack& stack, const ConstTensorView& experts) {
  if (stack.empty()) return "no experts";
  if (stack.is_image()) return "kernel images of experts";
  if (experts.empty()) return "for routed experts";
  return stack.size() > kMaxPlanned ? "more than 1024 experts" : nullptr;
}

bool takes_q8(const Context& context, const WeightView& weight) {
  return context.numerics == Numerics::kOfficial && weight.quantized_activations();
}

// Why x, which is stored once for all experts, cannot be what each weight takes.
const char* reject_mixed(const Context& context, const ExpertStack& stack, Member member,
                         Member other) {
  const bool first = takes_q8(context, stack.file()[0].*member);
  for (const ExpertWeights& expert : stack.file())
    if (takes_q8(context, expert.*member) != first || takes_q8(context, expert.*other) != first)
      return "only some weights take quantized activations";
  return nullptr;
}

ConstTensorView quantized(const Context& context, const ConstTensorView& x,
                          const WeightView& weight) {
  if (!takes_q8(context, weight)) return x;
  const TensorView codes = context.device->workspace().take(DType::kBF16, {x.dim(0), x.dim(1)});
  experts_quantize(*context.device, x, codes);
  return codes;
}

// out: rows in the order of the pairs. gather: [pairs] rows of x; null: row i for pair i
void multiply(const Context& context, const ConstTensorView& x, const int32_t* gather,
              const ExpertStack& stack, Member member, const ExpertPlan& plan,
              const TensorView& out) {
  std::vector<WeightView> weights;
  for (const ExpertWeights& expert : stack.file()) weights.push_back(expert.*member);
  run_grouped(*context.device,
              Problem{.x = x.data,
                      .x_dtype = x.dtype,
                      .x_stride = x.row_stride(),
                      .gather = gather,
                      .out = out.data,
                      .out_dtype = out.dtype,
                      .out_stride = out.row_stride(),
                      .n = static_cast<int>(out.dim(1)),
                      .k = static_cast<int>(x.dim(1)),
                      .m = out.dim(0),
                      .weight_rows_per_token = gemm::cuda::rows_for_split(context, out.dim(1))},
              weights, plan.first, gemm::cuda::Kernels::kGemv);
}

// The ids in the place of weights: of their shape, and not used.
ConstTensorView any_weights(const ConstTensorView& experts) {
  TensorMeta meta = experts;
  meta.dtype = DType::kF32;
  return {meta, experts.data};
}

}  // namespace

namespace experts_hidden_kernel::cuda {

const char* reject(const Context& context, const ExpertsHiddenArgs& args) {
  if (const char* why = reject_stack(args.stack, args.experts)) return why;
  if (args.hidden.dtype != activation_dtype(context)) return "hidden values of another dtype";
  return reject_mixed(context, args.stack, &ExpertWeights::w1, &ExpertWeights::w3);
}

void run(const Context& context, const ExpertsHiddenArgs& args) {
  const int64_t pairs = args.hidden.dim(0), inner = args.hidden.dim(1);
  if (pairs == 0) return;
  Device& device = *context.device;
  Scratch& scratch = device.workspace();
  const Scratch::Scope scope(scratch);
  const TensorView gate_up = scratch.take(args.hidden.dtype, {pairs, 2 * inner});
  const ConstTensorView x = quantized(context, args.x, args.stack.file()[0].w1);
  const ExpertPlan plan = make_expert_plan(
      device, {.x = args.x, .stack = args.stack, .experts = args.experts, .weights = args.weights},
      1, {});
  multiply(context, x, plan.token, args.stack, &ExpertWeights::w1, plan,
           gate_up.slice(1, 0, inner));
  multiply(context, x, plan.token, args.stack, &ExpertWeights::w3, plan,
           gate_up.slice(1, inner, 2 * inner));
  experts_swiglu(device, {.gate_up = gate_up,
                          .weight = plan.weight,
                          .limit = args.swiglu_limit,
                          .hidden = args.hidden,
                          .mirrors = args.mirrors});
}

}  // namespace experts_hidden_kernel::cuda

namespace experts_output_kernel::cuda {

const char* reject(const Context& context, const ExpertsOutputArgs& args) {
  if (const char* why = reject_stack(args.stack, args.experts)) return why;
  if (!args.rows.empty() && args.rows.dtype != activation_dtype(context))
    return "rows of another dtype";
  return reject_mixed(context, args.stack, &ExpertWeights::w2, &ExpertWeights::w2);
}

void run(const Context& context, const ExpertsOutputArgs& args) {
  const int64_t pairs = args.hidden.dim(0), n = args.out().dim(1);
  if (pairs == 0) return;
  Device& device = *context.device;
  Scratch& scratch = device.workspace();
  const Scratch::Scope scope(scratch);
  const TensorView y = scratch.take(activation_dtype(context), {pairs, n});
  const ConstTensorView rows = quantized(context, args.hidden, args.stack.file()[0].w2);
  const ExpertPlan plan = make_expert_plan(device,
                                           {.x = args.experts,
                                            .stack = args.stack,
                                            .experts = args.experts,
                                            .weights = any_weights(args.experts)},
                                           1, {});
  multiply(context, rows, nullptr, args.stack, &ExpertWeights::w2, plan, y);
  if (!args.rows.empty()) {
    const int64_t first = args.stack.first_id();
    return experts_spread(device, {.y = y,
                                   .pair_of = plan.pair_of,
                                   .ids = args.experts,
                                   .first = first,
                                   .end = first + args.stack.size(),
                                   .rows = args.rows});
  }
  experts_combine(device, {.y = y,
                           .pair_of = plan.pair_of,
                           .slots = args.experts.dim(1),
                           .add = args.add,
                           .addend = args.addend,
                           .acc = args.acc});
}

}  // namespace experts_output_kernel::cuda

namespace experts_sum_kernel::cuda {

void run(const Context& context, const ExpertsSumArgs& args) {
  if (args.acc.dim(0) == 0) return;
  experts_combine(*context.device, {.y = args.rows,
                                    .ids = args.experts,
                                    .num_ids = args.num_experts,
                                    .slots = args.experts.dim(1),
                                    .add = args.add,
                                    .addend = args.addend,
                                    .acc = args.acc,
                                    .mirrors = args.mirrors});
}

}  // namespace experts_sum_kernel::cuda

namespace experts_hidden_kernel::parts {

const char* reject(const Context& context, const ExpertsHiddenArgs& args) {
  if (!args.experts.empty() || args.stack.empty() || args.stack.is_image())
    return "for the shared expert";
  return args.hidden.dtype == activation_dtype(context) ? nullptr
                                                        : "hidden values of another dtype";
}

void run(const Context& context, const ExpertsHiddenArgs& args) {
  const int64_t t = args.hidden.dim(0), inner = args.hidden.dim(1);
  Scratch& scratch = workspace(context);
  const Scratch::Scope scope(scratch);
  const TensorView gate_up = scratch.take(args.hidden.dtype, {t, 2 * inner});
  const ExpertWeights& expert = args.stack.file()[0];
  Projection x(context, args.x);
  x.into(expert.w1, gate_up.slice(1, 0, inner));
  x.into(expert.w3, gate_up.slice(1, inner, 2 * inner));
  experts_swiglu(*context.device, {.gate_up = gate_up,
                                   .limit = args.swiglu_limit,
                                   .hidden = args.hidden,
                                   .mirrors = args.mirrors});
}

}  // namespace experts_hidden_kernel::parts

namespace experts_output_kernel::parts {

const char* reject(const Context&, const ExpertsOutputArgs& args) {
  return !args.experts.empty() || !args.rows.empty() || args.stack.empty() || args.stack.is_image()
             ? "for the sum of the shared expert"
             : nullptr;
}

void run(const Context& context, const ExpertsOutputArgs& args) {
  Scratch& scratch = workspace(context);
  const Scratch::Scope scope(scratch);
  const TensorView y = scratch.take(activation_dtype(context), {args.acc.dim(0), args.acc.dim(1)});
  Projection(context, args.hidden).into(args.stack.file()[0].w2, y);
  experts_combine(*context.device,
                  {.y = y, .add = args.add, .addend = args.addend, .acc = args.acc});
}

}  // namespace experts_output_kernel::parts

}  // namespace dsv4
