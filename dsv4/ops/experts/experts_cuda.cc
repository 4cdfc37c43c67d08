#include "dsv4/ops/experts/experts_cuda.h"

#include <algorithm>

#include "dsv4/ops/experts/experts_plan.h"
#include "dsv4/ops/experts/experts_steps.h"
#include "dsv4/ops/linear/product_cuda.h"

namespace dsv4 {
namespace {

using Member = WeightView ExpertWeights::*;

int64_t distance(const ConstTensorView& from, const ConstTensorView& to) {
  return from.empty() || to.empty() ? 0 : to.data - from.data;
}

// nullptr, or why one member of all experts is not a stack.
const char* reject_stack(std::span<const ExpertWeights> table, Member member) {
  const WeightView& first = table[0].*member;
  const WeightView& second = table[table.size() > 1 ? 1 : 0].*member;
  for (size_t e = 0; e < table.size(); ++e) {
    const WeightView& w = table[e].*member;
    const auto i = static_cast<int64_t>(e);
    const auto even = [&](ConstTensorView WeightView::*part) {
      return distance(first.*part, w.*part) == i * distance(first.*part, second.*part) &&
             (w.*part).row_stride() == (first.*part).row_stride();
    };
    if (w.format != first.format || w.bits != first.bits || w.scale.dtype != first.scale.dtype)
      return "experts differ in format";
    if (!even(&WeightView::data) || !even(&WeightView::scale) || !even(&WeightView::codebook))
      return "experts are not evenly spaced";
  }
  return nullptr;
}

WeightStack stack_of(std::span<const ExpertWeights> table, Member member, const float* scale2s) {
  const WeightView& first = table[0].*member;
  WeightStack stack = single(first);
  if (table.size() > 1) {
    const WeightView& second = table[1].*member;
    stack.stack_bytes = distance(first.data, second.data);
    stack.scale_stack_bytes = distance(first.scale, second.scale);
    stack.codebook_stack =
        distance(first.codebook, second.codebook) / static_cast<int64_t>(sizeof(float));
  }
  if (first.format == WeightFormat::kNvfp4 || first.format == WeightFormat::kKbit)
    stack.scale2s = scale2s;  // null: one expert, whose factor the stack has by value
  return stack;
}

enum class Kernels { kVector, kMma };

// One call: the products and what lies between them.
class Call {
 public:
  Call(const Context& context, const ExpertsArgs& args, Kernels kernels)
      : device_(*context.device),
        args_(args),
        kernels_(kernels),
        official_(context.numerics == Numerics::kOfficial),
        middle_(official_ ? DType::kBF16 : DType::kF32),
        t_(args.x.dim(0)),
        pairs_(t_ * slots(args)),
        d_(args.x.dim(1)),
        inner_(args.table[0].w1.n) {}

  void run() {
    Scratch& scratch = device_.workspace();
    const TensorView gate_up = scratch.take(middle_, {pairs_, 2 * inner_});
    const TensorView hidden = scratch.take(middle_, {pairs_, inner_});
    const TensorView y = scratch.take(middle_, {pairs_, d_});
    const ConstTensorView x = activations();
    Product sides = product(x, gate_up, inner_, 2), down = product(hidden, y, d_, 1);
    const int tile = choose_tile(sides, down);
    sides.tile_pairs = down.tile_pairs = tile;
    if (!args_.experts.empty()) plan_ = make_expert_plan(device_, args_, tile, scale2s());
    sides.gather = plan_.token;
    sides.weight[0] = stack_of(args_.table, &ExpertWeights::w1, plan_.scale2_w1);
    sides.weight[1] = stack_of(args_.table, &ExpertWeights::w3, plan_.scale2_w3);
    down.weight[0] = stack_of(args_.table, &ExpertWeights::w2, plan_.scale2_w2);
    multiply(sides);
    experts_swiglu(device_, {.gate_up = gate_up,
                             .share = plan_.share,
                             .limit = args_.swiglu_limit,
                             .quantise = quantised(&ExpertWeights::w2),
                             .hidden = hidden});
    multiply(down);
    experts_combine(device_, {.y = y,
                              .pair_of = plan_.pair_of,
                              .slots = slots(args_),
                              .add = args_.add,
                              .acc = args_.acc});
  }

 private:
  bool quantised(Member member) const {
    return official_ && (args_.table[0].*member).quantised_activations();
  }

  ConstTensorView activations() const {
    if (!quantised(&ExpertWeights::w1)) return args_.x;
    const TensorView x = device_.workspace().take(DType::kBF16, {t_, d_});
    experts_quantise(device_, args_.x, x);
    return x;
  }

  Product product(const ConstTensorView& x, const TensorView& out, int64_t n, int parts) const {
    return {.x = x.data,
            .x_dtype = x.dtype,
            .x_stride = x.row_stride(),
            .out = out.data,
            .out_is_bf16 = out.dtype == DType::kBF16,
            .out_stride = out.row_stride(),
            .n = static_cast<int>(n),
            .k = static_cast<int>(x.dim(1)),
            .parts = parts,
            .num_pairs = pairs_,
            .rows_per_token = static_cast<int>(slots(args_) * parts * n)};
  }

  int choose_tile(const Product& sides, const Product& down) const {
    const auto e = static_cast<int64_t>(args_.table.size());
    if (kernels_ == Kernels::kMma) {
      const int first = mma_tile(device_, sides, e), second = mma_tile(device_, down, e);
      // Either may be too wide for tiles of few pairs.
      return std::max(first, second) > kFewPairs ? std::max(first, second)
                                                 : std::min(first, second);
    }
    return std::min(vector_tile(device_, sides, e), vector_tile(device_, down, e));
  }

  Scale2s scale2s() const {
    Scale2s all;
    for (size_t e = 0; e < args_.table.size(); ++e) {
      all.w1[e] = args_.table[e].w1.scale2;
      all.w3[e] = args_.table[e].w3.scale2;
      all.w2[e] = args_.table[e].w2.scale2;
    }
    return all;
  }

  void multiply(Product& p) const {
    p.tiles = plan_.tiles;
    p.num_tiles = plan_.num_tiles;
    p.max_tiles = plan_.max_tiles;
    kernels_ == Kernels::kMma ? run_mma_product(device_, p) : run_vector_product(device_, p);
  }

  Device& device_;
  const ExpertsArgs& args_;
  const Kernels kernels_;
  const bool official_;
  const DType middle_;  // of gate, up and the experts' outputs
  const int64_t t_, pairs_, d_, inner_;
  ExpertPlan plan_;
};

}  // namespace

const char* reject_experts_cuda(const Context&, const ExpertsArgs& args) {
  if (args.table.empty()) return "no experts";
  if (args.table.size() > kMaxExperts) return "more than 384 experts";
  for (const Member member : {&ExpertWeights::w1, &ExpertWeights::w3, &ExpertWeights::w2}) {
    if (const char* reason = reject_stack(args.table, member)) return reason;
  }
  const WeightView &gate = args.table[0].w1, &up = args.table[0].w3;
  if (gate.format != up.format || gate.bits != up.bits || gate.scale.dtype != up.scale.dtype)
    return "gate and up differ in format";
  return nullptr;
}

namespace {

const char* reject_mma_rows(const Context& context, const ExpertsArgs& args, bool rounded) {
  if (const char* reason = reject_experts_cuda(context, args)) return reason;
  if (context.numerics == Numerics::kExact) return "exact numerics";
  // Where most experts have one pair, the vector kernels are as fast.
  const auto experts = static_cast<int64_t>(args.table.size());
  const bool few = args.x.dim(0) <= 1 || 2 * args.x.dim(0) * slots(args) <= experts;
  if (few && context.force_impl.empty()) return "few tokens for each expert";
  // Only what decides is filled in; hidden is ours, and aligned. Unquantised x is read as it is.
  const ExpertWeights& first = args.table[0];
  const bool copied = first.w1.quantised_activations();
  Product sides{.x = copied ? nullptr : args.x.data,
                .x_dtype = copied ? DType::kBF16 : args.x.dtype,
                .x_stride = copied ? args.x.dim(1) : args.x.row_stride(),
                .k = static_cast<int>(args.x.dim(1)),
                .parts = 2};
  Product down{.x_dtype = DType::kBF16, .x_stride = first.w2.k, .k = static_cast<int>(first.w2.k)};
  sides.weight[0] = stack_of(args.table, &ExpertWeights::w1, nullptr);
  sides.weight[1] = stack_of(args.table, &ExpertWeights::w3, nullptr);
  down.weight[0] = stack_of(args.table, &ExpertWeights::w2, nullptr);
  if (const char* reason = reject_mma(sides, rounded)) return reason;
  return reject_mma(down, rounded);
}

void run(const Context& context, const ExpertsArgs& args, Kernels kernels) {
  if (args.x.dim(0) == 0) return;
  const Scratch::Scope scope(context.device->workspace());
  Call(context, args, kernels).run();
}

}  // namespace

const char* reject_experts_mma(const Context& context, const ExpertsArgs& args) {
  return reject_mma_rows(context, args, false);
}
const char* reject_experts_mma_rounded(const Context& context, const ExpertsArgs& args) {
  return reject_mma_rows(context, args, true);
}

void experts_cuda(const Context& context, const ExpertsArgs& args) {
  run(context, args, Kernels::kVector);
}
void experts_mma(const Context& context, const ExpertsArgs& args) {
  run(context, args, Kernels::kMma);
}

}  // namespace dsv4
