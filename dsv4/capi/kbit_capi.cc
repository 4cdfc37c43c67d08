// dsv4_kbit.h: the products. Its structs to the arguments of ops linear, expert_linear and experts.

#include "dsv4/base/bits.h"
#include "dsv4/base/error.h"
#include "dsv4/capi/call.h"
#include "dsv4/capi/kbit_weights.h"
#include "dsv4/ops/parts/dequantize/dequantize.h"
#include "dsv4/ops/parts/expert_linear/expert_linear.h"
#include "dsv4/ops/parts/experts/experts.h"
#include "dsv4/ops/parts/image_linear/image_linear.h"
#include "dsv4/ops/parts/linear/linear.h"
#include "dsv4_kbit.h"

namespace dsv4::capi {
namespace {

constexpr std::initializer_list<DType> kFloats = {DType::kF32, DType::kBF16, DType::kF16};

TensorView required(Tensors& tensors, const char* name, const dsv4_tensor& tensor,
                    std::initializer_list<DType> dtypes, std::initializer_list<DimArg> shape) {
  DSV4_CHECK(!absent(tensor), "{} is absent", name);
  return tensors.view_of(name, tensor, dtypes, shape);
}

// Whether an implementation takes the call as it is.
template <class Args>
bool takes(const Op<Args>& op, const Context& context, const Args& args) {
  for (const Impl<Args>& impl : op.impls) {
    const bool named = context.force_impl.empty() || context.force_impl == impl.name;
    if (named && reaches(impl.arch, context) && reason_against(impl, context, args) == nullptr)
      return true;
  }
  return false;
}

// Whether the implementation for images is named, of linear or of experts: it then says why it
// refuses a call.
bool names_images(const Context& context) {
  return context.force_impl == "sm90_image";
}

// Each of the three below holds what one call needs until it has run.
struct LinearCall {
  Tensors tensors;
  KbitWeights weights;
  LinearArgs args;
  ImageLinearArgs of_image;  // the same, of a weight that is an image

  explicit LinearCall(const dsv4_kbit_linear_params& p) : weights(tensors) {
    Dim m("m"), k("k", p.weight.k), n("n", p.weight.n);
    args.x = required(tensors, "x", p.x, kFloats, {m, k});
    args.weight = weights.rows("weight", p.weight);
    args.out = required(tensors, "out", p.out, kFloats, {m, n});
    if (p.weight.layout == DSV4_IMAGE)
      of_image = {.x = args.x, .weight = weights.image("weight", p.weight), .out = args.out};
  }
  bool reads_image(const Context& c) const {
    if (of_image.weight.empty()) return false;
    return names_images(c) || takes(image_linear, c, of_image);
  }
  BoundOp bind() const {
    return {.workspace_bytes =
                [this](const Context& c) {
                  if (reads_image(c)) return workspace_bytes(image_linear, c, of_image);
                  return weights.workspace_bytes(c) + workspace_bytes(linear, c, args);
                },
            .run =
                [this](const Context& c) {
                  if (reads_image(c)) return image_linear(c, of_image);
                  const MadeRows made(weights, c);
                  LinearArgs call = args;
                  call.weight = made(args.weight);
                  linear(c, call);
                }};
  }
};

struct ExpertLinearCall {
  Tensors tensors;
  KbitWeights weights;
  std::vector<WeightView> views;
  ExpertLinearArgs args;

  explicit ExpertLinearCall(const dsv4_kbit_expert_linear_params& p) : weights(tensors) {
    Dim rows("rows"), k("k"), n("n");
    args.x = required(tensors, "x", p.x, kFloats, {rows, k});
    views = weights.rows("weights", p.weights, p.num_experts);
    args.weights = views;
    args.offsets = required(tensors, "offsets", p.offsets, {DType::kI32}, {p.num_experts + 1});
    args.out = required(tensors, "out", p.out, kFloats, {rows, n});
  }
  BoundOp bind() const {
    return {.workspace_bytes =
                [this](const Context& c) {
                  return weights.workspace_bytes(c) + workspace_bytes(expert_linear, c, args);
                },
            .run =
                [this](const Context& c) {
                  const MadeRows made(weights, c);
                  std::vector<WeightView> rows;
                  for (const WeightView& w : views) rows.push_back(made(w));
                  ExpertLinearArgs call = args;
                  call.weights = rows;
                  expert_linear(c, call);
                }};
  }
};

GateActivation activation_of(int32_t activation) {
  DSV4_CHECK(activation >= DSV4_SILU && activation <= DSV4_GELU_TANH,
             "activation={}: want one of dsv4_activation", activation);
  return activation == DSV4_SILU   ? GateActivation::kSilu
         : activation == DSV4_GELU ? GateActivation::kGelu
                                   : GateActivation::kGeluTanh;
}

struct MoeCall {
  Tensors tensors;
  KbitWeights weights;
  std::vector<ExpertWeights> stack, images;  // images: empty unless all weights are
  ExpertsArgs args;
  TensorView out;

  explicit MoeCall(const dsv4_kbit_moe_params& p) : weights(tensors) {
    Dim t("t"), d("d"), top_k("top_k");
    args.x = required(tensors, "x", p.x, kFloats, {t, d});
    const auto gate = weights.rows("gate", p.gate, p.num_experts);
    const auto up = weights.rows("up", p.up, p.num_experts);
    const auto down = weights.rows("down", p.down, p.num_experts);
    for (size_t e = 0; e < gate.size(); ++e) stack.push_back({gate[e], up[e], down[e]});
    args.stack = stack;
    images = images_of(p);
    args.experts = required(tensors, "experts", p.experts, {DType::kI32}, {t, top_k});
    args.weights = required(tensors, "expert_weights", p.expert_weights, {DType::kF32}, {t, top_k});
    DSV4_CHECK(p.limit >= 0, "limit={}: want 0 for none, or more", p.limit);
    args.swiglu_limit = p.limit, args.activation = activation_of(p.activation), args.add = false;
    out = required(tensors, "out", p.out, kFloats, {t, d});
    args.acc = {TensorMeta::contiguous(DType::kF32, {out.dim(0), out.dim(1)}), out.data};
    if (out.dtype == DType::kF32) args.acc = out;
  }
  BoundOp bind() const {
    return {.workspace_bytes =
                [this](const Context& c) {
                  const bool as_images = reads_images(c);
                  return (as_images ? 0 : weights.workspace_bytes(c)) + sum_bytes(c) +
                         workspace_bytes(experts, exact(c), as_images ? image_call(c) : call_of(c));
                },
            .run = [this](const Context& c) { run(c); }};
  }

 private:
  std::vector<ExpertWeights> images_of(const dsv4_kbit_moe_params& p) {
    std::vector<ExpertWeights> all;
    for (int64_t e = 0; e < p.num_experts; ++e) {
      for (const dsv4_weight* w : {&p.gate[e], &p.up[e], &p.down[e]})
        if (w->layout != DSV4_IMAGE) return {};
      all.push_back({weights.image("gate", p.gate[e]), weights.image("up", p.up[e]),
                     weights.image("down", p.down[e])});
    }
    return all;
  }
  ExpertsArgs image_call(const Context& c) const {
    ExpertsArgs call = call_of(c);
    call.stack = ExpertStack(images, WeightLayout::kMatrixImages);
    return call;
  }
  bool reads_images(const Context& c) const {
    if (images.empty()) return false;
    return names_images(c) || takes(experts, exact(c), image_call(c));
  }

  // f32 between the products, but for operands of tensor cores: official numerics are
  // DeepSeek-V4's.
  static Context exact(Context c) {
    c.numerics = Numerics::kExact;
    return c;
  }
  ExpertsArgs call_of(const Context& c) const {
    ExpertsArgs call = args;
    call.may_round_operands = c.numerics != Numerics::kExact;
    return call;
  }
  // An output that is not f32 needs an f32 sum; this is what Scratch takes for it.
  int64_t sum_bytes(const Context& context) const {
    const bool none = out.dtype == DType::kF32 || context.device == nullptr;
    return none ? 0 : align_up(out.numel() * int64_t{sizeof(float)}, 256);
  }
  void run(const Context& context) const {
    if (reads_images(context)) return run(context, image_call(context));
    const MadeRows made(weights, context);
    std::vector<ExpertWeights> rows;
    for (const ExpertWeights& e : stack) rows.push_back({made(e.w1), made(e.w3), made(e.w2)});
    ExpertsArgs call = call_of(context);
    call.stack = rows;
    run(context, call);
  }
  void run(const Context& context, ExpertsArgs call) const {
    if (out.dtype == DType::kF32) return experts(exact(context), call);
    if (context.device == nullptr) {
      const Buffer sum(DType::kF32, {out.dim(0), out.dim(1)});
      return run_and_round(context, call, sum);
    }
    const Scratch::Scope scope(workspace(context));
    run_and_round(context, call, workspace(context).take(DType::kF32, {out.dim(0), out.dim(1)}));
  }
  void run_and_round(const Context& context, ExpertsArgs& call, const TensorView& sum) const {
    call.acc = sum;
    experts(exact(context), call);
    const WeightView values{.n = out.dim(0), .k = out.dim(1), .data = sum};
    Context rounding = exact(context);
    rounding.force_impl = {};  // it names one of the experts
    dequantize(rounding, {.weight = values, .out = out});
  }
};

void check_layout(const char* function, const dsv4_weight& weight, int32_t layout) {
  DSV4_CHECK(weight.format == DSV4_WEIGHT_KBIT && weight.layout == layout,
             "{}: want a k-bit weight {}, got format={}, layout={}; kbit_linear takes any",
             function, layout == DSV4_TILED ? "in tiles" : "in rows", weight.format, weight.layout);
}

}  // namespace
}  // namespace dsv4::capi

using namespace dsv4::capi;  // NOLINT: what follows is dsv4's, under C names

int dsv4_kbit_linear(const dsv4_kbit_linear_params* params, const dsv4_call* call) {
  return run_call<LinearCall>(params, call);
}
int dsv4_kbit_linear_workspace_bytes(const dsv4_kbit_linear_params* params, const dsv4_call* call,
                                     size_t* bytes) {
  return ask_workspace<LinearCall>(params, call, bytes);
}

int dsv4_kbit_gemm_prod(const dsv4_kbit_linear_params* params, const dsv4_call* call) {
  const int status = guarded(
      [&] { check_layout("kbit_gemm_prod", checked("params", params).weight, DSV4_TILED); });
  return status != DSV4_OK ? status : dsv4_kbit_linear(params, call);
}

int dsv4_kbit_scalar_gemv(const dsv4_kbit_linear_params* params, const dsv4_call* call) {
  const int status = guarded([&] {
    check_layout("kbit_scalar_gemv", checked("params", params).weight, DSV4_ROWS);
    DSV4_CHECK(params->x.shape[0] <= 4, "kbit_scalar_gemv: x has {} rows, want 1 to 4",
               params->x.shape[0]);
  });
  return status != DSV4_OK ? status : dsv4_kbit_linear(params, call);
}

int dsv4_kbit_expert_linear(const dsv4_kbit_expert_linear_params* params, const dsv4_call* call) {
  return run_call<ExpertLinearCall>(params, call);
}
int dsv4_kbit_expert_linear_workspace_bytes(const dsv4_kbit_expert_linear_params* params,
                                            const dsv4_call* call, size_t* bytes) {
  return ask_workspace<ExpertLinearCall>(params, call, bytes);
}

int dsv4_kbit_grouped_gemm(const dsv4_kbit_expert_linear_params* params, const dsv4_call* call) {
  const int status = guarded([&] {
    const auto& p = checked("params", params);
    for (int64_t e = 0; p.weights != nullptr && e < p.num_experts; ++e)
      check_layout("kbit_grouped_gemm", p.weights[e], DSV4_TILED);
  });
  return status != DSV4_OK ? status : dsv4_kbit_expert_linear(params, call);
}

int dsv4_kbit_moe(const dsv4_kbit_moe_params* params, const dsv4_call* call) {
  return run_call<MoeCall>(params, call);
}
int dsv4_kbit_moe_workspace_bytes(const dsv4_kbit_moe_params* params, const dsv4_call* call,
                                  size_t* bytes) {
  return ask_workspace<MoeCall>(params, call, bytes);
}
