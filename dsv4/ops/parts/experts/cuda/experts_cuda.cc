// The implementations cuda and cuda_mma of experts.h: plan, Q8 of x, gate and up, SwiGLU, down,
// combine; one launch each. cuda also takes experts that are no strided weights: gate, up and down
// are then products of gemm/cuda/grouped.h.

#include <algorithm>
#include <vector>

#include "dsv4/ops/gemm/cuda/grouped.h"
#include "dsv4/ops/gemm/cuda/rows_for_split.h"
#include "dsv4/ops/parts/experts/cuda/plan.h"
#include "dsv4/ops/parts/experts/cuda/steps.h"
#include "dsv4/ops/parts/experts/cuda/strided_weights.h"
#include "dsv4/ops/parts/experts/experts.h"

namespace dsv4::experts_kernel {
namespace {

using gemm::cuda::Kernels;
using gemm::cuda::Problem;
// Returns nullptr, or why gate, up and down of the experts are not three strided weights.
const char* reject_strided(const ExpertsArgs& args) {
  if (args.stack.size() > kMaxExperts) return "more than 384 experts";
  for (const Member member : {&ExpertWeights::w1, &ExpertWeights::w3, &ExpertWeights::w2}) {
    if (const char* reason = reject_weights(args.stack.file(), member)) return reason;
  }
  const WeightView &gate = args.stack.file()[0].w1, &up = args.stack.file()[0].w3;
  if (gate.format != up.format || gate.bits != up.bits || gate.scale.dtype != up.scale.dtype)
    return "gate and up differ in format";
  return nullptr;
}

// One call: the GEMMs and the steps around them.
class Call {
 public:
  Call(const Context& context, const ExpertsArgs& args, Kernels kernels)
      : context_(context),
        device_(*context.device),
        args_(args),
        kernels_(kernels),
        official_(context.numerics == Numerics::kOfficial),
        middle_(official_ ? DType::kBF16 : DType::kF32),
        t_(args.x.dim(0)),
        pairs_(t_ * slots(args)),
        d_(args.x.dim(1)),
        inner_(args.stack.inner()) {}

  void run() {
    Scratch& scratch = device_.workspace();
    const TensorView gate_up = scratch.take(middle_, {pairs_, 2 * inner_});
    const TensorView hidden = scratch.take(middle_, {pairs_, inner_});
    const TensorView y = scratch.take(middle_, {pairs_, d_});
    const ConstTensorView x = activations();
    Problem up = problem(x, gate_up, inner_, 2), down = problem(hidden, y, d_, 1);
    const bool strided = kernels_ == Kernels::kMma || reject_strided(args_) == nullptr;
    const int tile = strided ? choose_tile(up, down) : 1;
    up.tile_m = down.tile_m = tile;
    if (!args_.experts.empty())
      plan_ = make_expert_plan(device_, args_, tile, scale2s_of(args_.stack));
    up.gather = plan_.token;
    const auto swiglu = [&] {
      experts_swiglu(device_, {.gate_up = gate_up,
                               .weight = plan_.weight,
                               .limit = args_.swiglu_limit,
                               .quantize = quantized(&ExpertWeights::w2),
                               .hidden = hidden,
                               .activation = args_.activation});
    };
    if (strided) {
      up.weight[0] = strided_weight(args_.stack.file(), &ExpertWeights::w1, plan_.scale2_w1);
      up.weight[1] = strided_weight(args_.stack.file(), &ExpertWeights::w3, plan_.scale2_w3);
      down.weight[0] = strided_weight(args_.stack.file(), &ExpertWeights::w2, plan_.scale2_w2);
      multiply(up);
      swiglu();
      multiply(down);
    } else {
      const TensorView gate = gate_up.slice(1, 0, inner_),
                       rest = gate_up.slice(1, inner_, 2 * inner_);
      multiply_listed(problem(x, gate, inner_, 1), plan_.token, &ExpertWeights::w1);
      multiply_listed(problem(x, rest, inner_, 1), plan_.token, &ExpertWeights::w3);
      swiglu();
      multiply_listed(down, nullptr, &ExpertWeights::w2);
    }
    experts_combine(device_, {.y = y,
                              .pair_of = plan_.pair_of,
                              .slots = slots(args_),
                              .add = args_.add,
                              .addend = args_.addend,
                              .acc = args_.acc});
  }

 private:
  bool quantized(Member member) const {
    return official_ && (args_.stack.file()[0].*member).quantized_activations();
  }

  ConstTensorView activations() const {
    if (!quantized(&ExpertWeights::w1)) return args_.x;
    const TensorView x = device_.workspace().take(DType::kBF16, {t_, d_});
    experts_quantize(device_, args_.x, x);
    return x;
  }

  Problem problem(const ConstTensorView& x, const TensorView& out, int64_t n,
                  int projections) const {
    return {.x = x.data,
            .x_dtype = x.dtype,
            .x_stride = x.row_stride(),
            .out = out.data,
            .out_dtype = out.dtype,
            .out_stride = out.row_stride(),
            .n = static_cast<int>(n),
            .k = static_cast<int>(x.dim(1)),
            .projections = projections,
            .m = pairs_,
            .weight_rows_per_token =
                gemm::cuda::rows_for_split(context_, slots(args_) * projections * n)};
  }

  int choose_tile(const Problem& up, const Problem& down) const {
    const auto e = static_cast<int64_t>(args_.stack.file().size());
    if (kernels_ == Kernels::kMma) {
      const int first = mma_tile(device_, up, e), second = mma_tile(device_, down, e);
      // Either k may be too large for the small-M kernels.
      return std::max(first, second) > gemm::cuda::kSmallM ? std::max(first, second)
                                                           : std::min(first, second);
    }
    return std::min(gemv_tile(device_, up, e), gemv_tile(device_, down, e));
  }

  // Without a plan there is one expert, and all rows are its.
  void multiply_listed(Problem p, const int32_t* gather, Member member) const {
    p.gather = gather;
    std::vector<WeightView> weights;
    for (const ExpertWeights& expert : args_.stack.file()) weights.push_back(expert.*member);
    if (plan_.first != nullptr)
      return run_grouped(device_, p, weights, plan_.first, Kernels::kGemv);
    p.weight[0] = gemm::cuda::single_matrix(weights[0]);
    p.tile_m = gemv_tile(device_, p, 1);
    run_gemv(device_, p);
  }

  void multiply(Problem& p) const {
    p.tiles = plan_.tiles;
    p.num_tiles = plan_.num_tiles;
    p.max_tiles = plan_.max_tiles;
    kernels_ == Kernels::kMma ? run_mma(device_, p) : run_gemv(device_, p);
  }

  const Context& context_;
  Device& device_;
  const ExpertsArgs& args_;
  const Kernels kernels_;
  const bool official_;
  const DType middle_;  // of gate, up and the outputs of down
  const int64_t t_, pairs_, d_, inner_;
  ExpertPlan plan_;
};

void run(const Context& context, const ExpertsArgs& args, Kernels kernels) {
  if (args.x.dim(0) == 0) return;
  const Scratch::Scope scope(context.device->workspace());
  Call(context, args, kernels).run();
}

}  // namespace

namespace cuda {

const char* reject(const Context& context, const ExpertsArgs& args) {
  if (args.stack.empty()) return "no experts";
  if (!args.stack.is_file()) return "kernel images of experts";
  if (args.stack.size() > kMaxPlanned) return "more than 1024 experts";
  if (context.numerics == Numerics::kExact) return nullptr;
  // x and hidden are stored once for all experts, quantized or not.
  const ExpertWeights& first = args.stack.file()[0];
  const bool x = first.w1.quantized_activations(), hidden = first.w2.quantized_activations();
  for (const ExpertWeights& expert : args.stack.file())
    if (expert.w1.quantized_activations() != x || expert.w3.quantized_activations() != x ||
        expert.w2.quantized_activations() != hidden)
      return "only some weights take quantized activations";
  return nullptr;
}

void run(const Context& context, const ExpertsArgs& args) {
  experts_kernel::run(context, args, Kernels::kGemv);
}

}  // namespace cuda

namespace cuda_mma {
namespace {

// Why the tensor core kernels do not take the weights of the first expert, which stand for all.
// Only the fields that reject_mma() reads are set. Hidden is allocated here and therefore aligned;
// x is read in place unless it is quantized.
const char* reject_products(const ExpertsArgs& args) {
  const ExpertWeights& first = args.stack.file()[0];
  const bool copied = first.w1.quantized_activations();
  Problem up{.x = copied ? nullptr : args.x.data,
             .x_dtype = copied ? DType::kBF16 : args.x.dtype,
             .x_stride = copied ? args.x.dim(1) : args.x.row_stride(),
             .k = static_cast<int>(args.x.dim(1)),
             .projections = 2};
  Problem down{.x_dtype = DType::kBF16, .x_stride = first.w2.k, .k = static_cast<int>(first.w2.k)};
  up.weight[0] = strided_weight(args.stack.file(), &ExpertWeights::w1, nullptr);
  up.weight[1] = strided_weight(args.stack.file(), &ExpertWeights::w3, nullptr);
  down.weight[0] = strided_weight(args.stack.file(), &ExpertWeights::w2, nullptr);
  if (const char* reason = reject_mma(up)) return reason;
  return reject_mma(down);
}

}  // namespace

const char* reject(const Context& context, const ExpertsArgs& args) {
  if (context.numerics == Numerics::kExact) return "exact numerics";
  if (args.stack.empty()) return "no experts";
  if (!args.stack.is_file()) return "kernel images of experts";
  // Where most experts have one pair, the GEMV kernels are as fast.
  const bool few = args.x.dim(0) <= 1 || 2 * args.x.dim(0) * slots(args) <= args.stack.size();
  if (few && context.force_impl.empty()) return "few tokens for each expert";
  if (const char* reason = reject_other_models(args)) return reason;
  // This walks all experts: last but one, so that a call walks them once on its way down the table.
  if (const char* reason = reject_strided(args)) return reason;
  return reject_products(args);
}

double rounding(const ExpertsArgs& args) {
  if (args.stack.empty() || !args.stack.is_file()) return 0;
  const ExpertWeights& first = args.stack.file()[0];
  using gemm::cuda::mma_rounding;
  return std::max({mma_rounding(first.w1), mma_rounding(first.w3), mma_rounding(first.w2)});
}

void run(const Context& context, const ExpertsArgs& args) {
  experts_kernel::run(context, args, Kernels::kMma);
}

}  // namespace cuda_mma

}  // namespace dsv4::experts_kernel
