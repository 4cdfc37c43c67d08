// moe for few tokens: the gate and gate and up of the shared expert in one launch, its down
// projection and the router in another, then the routed experts, which add what the shared expert
// computed.

#include "dsv4/ops/gemm/few_gemm/launch_shape.cuh"
#include "dsv4/ops/model/hc_boundary/sm90_few/launch.cuh"
#include "dsv4/ops/model/moe/moe_impls.h"
#include "dsv4/ops/model/moe/sm90_few/launch.cuh"

namespace dsv4 {
namespace {

namespace few = moe_kernel::sm90_few;

constexpr int64_t kMaxTokens = 64;
// Runs the boundary and the inputs in two launches, if they take it. Else returns false.
bool run_inputs_with_boundary(const Context& context, const MoeArgs& args,
                              const few::InputTargets& targets, const few::Middle& middle) {
  Device& device = *context.device;
  const few_gemm::Pair pair = few::pair_of_inputs(args, targets, device.info().num_sms,
                                                  few_gemm::boundary_bytes(args.boundary));
  if (few_gemm::reject_boundary(context, args.boundary, pair) != nullptr) return false;
  const Scratch::Scope scope(device.workspace());
  const few_gemm::hc::Params mixed = few_gemm::hc::launch_mix(context, args.boundary);
  if (device.is_dry_run()) return true;
  const few_gemm::WithBoundary<few::InputParams> params{
      few::make_input_params(pair, args, targets, middle, {.x = args.x, .quantize = true},
                             make_tma_map),
      mixed};
  few_gemm::with_boundary_config(pair.q8.format, pair.tokens, [&](auto config) {
    launch(device, "moe_inputs with boundary", few::inputs_with_boundary_kernel<decltype(config)>(),
           few_gemm::launch_shape_with_boundary(pair), params);
  });
  return true;
}

}  // namespace

void few::run_inputs(const Context& context, const MoeArgs& args, const few::Middle& middle) {
  Device& device = *context.device;
  const few::InputTargets targets(args, middle);
  if (is_given(args.boundary) && run_inputs_with_boundary(context, args, targets, middle)) return;
  const Scratch::Scope scope(device.workspace());
  const few_gemm::Activations quantized = few_gemm::quantized_x(context, args.boundary, args.x);
  if (device.is_dry_run()) return;
  const few_gemm::Pair pair = few::pair_of_inputs(args, targets, device.info().num_sms);
  const few::InputParams params =
      few::make_input_params(pair, args, targets, middle, quantized, make_tma_map);
  few_gemm::with_q8_config(pair.q8.format, pair.tokens, [&](auto config) {
    launch(device, "moe_inputs", few::inputs_kernel<decltype(config)>(),
           few_gemm::launch_shape(pair), params);
  });
}

namespace {

void run_down(const Context& context, const MoeArgs& args, const few::Middle& middle) {
  Device& device = *context.device;
  if (device.is_dry_run()) return;
  const few_gemm::Product p = few::product_of_w2(args, middle);
  const few_gemm::Shape shape = few_gemm::shape_of(p.weight, p.in, 1);
  const few_gemm::Split split = few_gemm::make_split(shape, device.info().num_sms);
  const int tokens = few_gemm::tile_tokens(shape.format, shape.tokens);
  const few::DownParams params =
      few::make_down_params(p, few::router_args(args, middle), split, tokens, make_tma_map);
  LaunchShape grid = few_gemm::launch_shape(shape, split, tokens);
  grid.grid = params.product_ctas + params.routing_ctas;
  few_gemm::with_q8_config(shape.format, tokens, [&](auto config) {
    launch(device, "moe_down", few::down_kernel<decltype(config)>, grid, params);
  });
}

const char* reject_router(const MoeArgs& args) {
  if (args.experts_per_token > kWarp) return "more choices than lanes";
  if (args.gate.n > few::kMaxExperts) return "more than 384 experts";
  return nullptr;
}

}  // namespace

const char* moe_sm90_few_reject(const Context& context, const MoeArgs& args) {
  if (args.shared.is_image()) return "kernel images of the shared expert";
  const ExpertWeights& shared = few::shared_expert(args);
  const bool kbit = shared.w2.format == WeightFormat::kKbit;
  // Where the bits of a token must not depend on the batch, larger batches take the same kernels.
  if (args.x.dim(0) > (kbit ? few_gemm::kKbitTokens : kMaxTokens) && !context.need_batch_invariant)
    return "for up to 64 tokens, 8 with a k-bit shared expert";
  for (const WeightView* w : {&shared.w1, &shared.w3, &shared.w2})
    if (w->format != (kbit ? WeightFormat::kKbit : WeightFormat::kFp8Block))
      return "for a shared expert in fp8 or k-bit planes";
  if (args.gate.format != WeightFormat::kBF16) return "for a gate in bf16";
  if (const char* why = reject_router(args)) return why;
  const few::Middle middle =
      few::make_middle(args, [](DType dtype, std::initializer_list<int64_t> shape) {
        return TensorView(TensorMeta::contiguous(dtype, shape), nullptr);
      });
  const few::InputTargets targets(args, middle);
  const few_gemm::Product w2 = few::product_of_w2(args, middle);
  const char* why = kbit ? few_gemm::reject_kbit(context, args.x, targets.all)
                         : few_gemm::reject(context, args.x, targets.all);
  if (why != nullptr) return why;
  return kbit ? few_gemm::reject_kbit(context, w2) : few_gemm::reject(context, w2);
}

void moe_sm90_few(const Context& given, const MoeArgs& args) {
  if (args.x.dim(0) == 0) return;
  experts.check({.x = args.x, .stack = args.shared, .acc = args.acc});
  Context context = given;
  context.force_impl = {};  // of moe
  Scratch& scratch = workspace(context);
  const Scratch::Scope scope(scratch);
  const few::Middle middle =
      few::make_middle(args, [&](DType dtype, std::initializer_list<int64_t> shape) {
        return scratch.take(dtype, shape);
      });
  router.check(few::router_args(args, middle));
  few::run_inputs(context, args, middle);
  run_down(context, args, middle);
  experts(context, {.x = args.x,
                    .stack = args.routed,
                    .experts = middle.chosen,
                    .weights = middle.share,
                    .swiglu_limit = args.swiglu_limit,
                    .acc = args.acc,
                    .add = false,
                    .addend = middle.y});
}

}  // namespace dsv4
