// The implementation cuda_kbit of experts.h: few tokens and k-bit weights with any codebook
// (gemm/cuda/kbit_experts.h). Plan, gate and up with the activation, down, combine; one launch
// each. h has the type of x.

#include "dsv4/ops/gemm/cuda/kbit_experts.h"
#include "dsv4/ops/parts/experts/cuda/plan.h"
#include "dsv4/ops/parts/experts/cuda/steps.h"
#include "dsv4/ops/parts/experts/cuda/strided_weights.h"
#include "dsv4/ops/parts/experts/experts.h"

namespace dsv4::experts_kernel::cuda_kbit {

namespace kernel = gemm::kbit_experts;
using gemm::cuda::Problem;

static Problem problem_of(const ConstTensorView& x, const TensorView& out, int64_t pairs) {
  return {.x = x.data,
          .x_dtype = x.dtype,
          .x_stride = x.row_stride(),
          .out = out.data,
          .out_dtype = out.dtype,
          .out_stride = out.empty() ? 0 : out.row_stride(),
          .n = static_cast<int>(out.dim(1)),
          .k = static_cast<int>(x.dim(1)),
          .m = pairs,
          .tile_m = kernel::kTileRowsOfX};
}

static Problem gate_up_of(const ExpertsArgs& args, const TensorView& hidden,
                          const ExpertPlan& plan) {
  const auto table = args.stack.file();
  Problem p = problem_of(args.x, hidden, hidden.dim(0));
  p.gather = plan.token, p.projections = 2;
  p.weight[0] = strided_weight(table, &ExpertWeights::w1, plan.scale2_w1);
  p.weight[1] = strided_weight(table, &ExpertWeights::w3, plan.scale2_w3);
  if (all_e4m3(table, &ExpertWeights::w1) && all_e4m3(table, &ExpertWeights::w3))
    p.weight[1].codebook = p.weight[0].codebook;
  return p;
}

static Problem down_of(const ExpertsArgs& args, const TensorView& hidden, const TensorView& y,
                       const ExpertPlan& plan) {
  Problem p = problem_of(hidden, y, hidden.dim(0));
  p.weight[0] = strided_weight(args.stack.file(), &ExpertWeights::w2, plan.scale2_w2);
  return p;
}

const char* reject(const Context& context, const ExpertsArgs& args) {
  if (args.stack.empty()) return "no experts";
  if (!args.stack.is_file()) return "kernel images of experts";
  for (const Member member : {&ExpertWeights::w1, &ExpertWeights::w3, &ExpertWeights::w2})
    if (const char* why = reject_weights(args.stack.file(), member)) return why;
  if (args.experts.empty()) return "no expert ids";
  if (args.stack.size() > kMaxPlanned) return "more than 1024 experts";
  if (context.numerics != Numerics::kExact) return "official numerics";
  if (!args.may_round_operands) return "operands must not be rounded";
  // By name any number: from some number of rows on others read weights less often.
  constexpr int64_t kChosenTokens = 64;
  if (args.x.dim(0) > kChosenTokens && context.force_impl.empty()) return "more than 64 tokens";
  const int64_t pairs = args.x.dim(0) * slots(args);
  const auto shape = [&](DType dtype, int64_t n) {
    return TensorView(TensorMeta::contiguous(dtype, {pairs, n}), nullptr);
  };
  const TensorView hidden = shape(args.x.dtype, args.stack.inner());
  const TensorView y = shape(DType::kF32, args.x.dim(1));
  if (const char* why = kernel::reject(*context.device, gate_up_of(args, hidden, {}))) return why;
  return kernel::reject(*context.device, down_of(args, hidden, y, {}));
}

double rounding(const ExpertsArgs& args) {
  return kernel::rounding(args.x.dtype);
}

void run(const Context& context, const ExpertsArgs& args) {
  const int64_t pairs = args.x.dim(0) * slots(args);
  if (args.x.dim(0) == 0) return;
  Device& device = *context.device;
  Scratch& scratch = device.workspace();
  const Scratch::Scope scope(scratch);
  const TensorView hidden = scratch.take(args.x.dtype, {pairs, args.stack.inner()});
  const TensorView y = scratch.take(DType::kF32, {pairs, args.x.dim(1)});
  const ExpertPlan plan =
      make_expert_plan(device, args, kernel::kTileRowsOfX, scale2s_of(args.stack));
  Problem gate_up = gate_up_of(args, hidden, plan), down = down_of(args, hidden, y, plan);
  for (Problem* p : {&gate_up, &down})
    p->tiles = plan.tiles, p->num_tiles = plan.num_tiles, p->max_tiles = plan.max_tiles;
  gemm::GatedStep gated = gated_step_of(args);
  gated.weight = plan.weight;
  kernel::run(device, gate_up, &gated, false);
  kernel::run(device, down, nullptr, true);
  experts_combine(device, {.y = y,
                           .pair_of = plan.pair_of,
                           .slots = slots(args),
                           .add = args.add,
                           .addend = args.addend,
                           .acc = args.acc});
}

}  // namespace dsv4::experts_kernel::cuda_kbit
