// moe for few tokens: the gate and gate and up of the shared expert in one launch, its down
// projection and the router in another, then the routed experts, which add what the shared expert
// computed. Where bits must not depend on the batch, the products of many tokens are those of
// gemm/sm90/large_m, and SwiGLU and the router are launches of their own.

#include "dsv4/ops/gemm/sm90/small_m/launch_shape.cuh"
#include "dsv4/ops/gemm/x/boundary.cuh"
#include "dsv4/ops/model/hc_boundary/block_input.h"
#include "dsv4/ops/model/moe/sm90_few/kernels.cuh"
#include "dsv4/ops/model/moe/sm90_few/launch.cuh"

namespace dsv4::moe_kernel::sm90_few {
namespace {

constexpr int64_t kMaxTokens = 64;
// With more, Q8 of the shared expert's hidden values takes less time in a launch of its own than in
// every CTA of w2, and tiles of more than 32 tokens want it stored.
constexpr int64_t kQuantizeHiddenTokens = 16;

// Runs the boundary and the inputs in two launches, if they take it. Else returns false.
bool run_inputs_with_boundary(const Context& context, const MoeArgs& args,
                              const InputTargets& targets, const Intermediates& temporaries) {
  Device& device = *context.device;
  const int64_t t = args.x.dim(0), d = args.x.dim(1);
  const gemm::TwoFormats formats =
      formats_of_inputs(args, targets, device.info().num_sms, gemm::boundary_bytes(t, d),
                        context.need_batch_invariant);
  if (reject_mix(context, args.boundary) != nullptr ||
      gemm::reject_boundary(t, d, formats) != nullptr)
    return false;
  const Scratch::Scope scope(device.workspace());
  const gemm::boundary::Params mixed = mix_boundary(context, args.boundary);
  if (device.is_dry_run()) return true;
  const gemm::WithBoundary<InputParams> params{
      make_input_params(formats, args, targets, temporaries, {.x = args.x, .quantize = true},
                        make_tma_map),
      mixed};
  gemm::with_boundary_config(formats.q8.format, formats.tokens, [&](auto config) {
    launch(device, "moe_inputs with boundary", inputs_with_boundary_kernel<decltype(config)>(),
           gemm::launch_shape_with_boundary(formats), params);
  });
  return true;
}

}  // namespace

void run_inputs(const Context& context, const MoeArgs& args, const Intermediates& temporaries) {
  Device& device = *context.device;
  const InputTargets targets(args, temporaries);
  if (is_given(args.boundary) && run_inputs_with_boundary(context, args, targets, temporaries))
    return;
  const Scratch::Scope scope(device.workspace());
  const gemm::Activations quantized = quantized_input(context, args.boundary, args.x);
  if (takes_many(context, args, temporaries))
    return run_many_inputs(context, args, quantized, temporaries);
  if (device.is_dry_run()) return;
  const gemm::TwoFormats formats =
      formats_of_inputs(args, targets, device.info().num_sms, 0, context.need_batch_invariant);
  const InputParams params =
      make_input_params(formats, args, targets, temporaries, quantized, make_tma_map);
  gemm::with_q8_config(formats.q8.format, formats.tokens, [&](auto config) {
    launch(device, "moe_inputs", inputs_kernel<decltype(config)>(), gemm::launch_shape(formats),
           params);
  });
}

namespace {

// Hidden values as the kernel of w2 takes them.
gemm::Product product_of_run(const Context& context, const MoeArgs& args,
                             const Intermediates& temporaries) {
  gemm::Product p = product_of_w2(args, temporaries);
  if (p.in.x.dim(0) > kQuantizeHiddenTokens && p.weight.format == WeightFormat::kFp8Block)
    p.in = quantized_input(context, {}, p.in.x);
  return p;
}

void run_down(const Context& context, const MoeArgs& args, const Intermediates& temporaries) {
  Device& device = *context.device;
  const Scratch::Scope scope(device.workspace());
  const gemm::Product p = product_of_run(context, args, temporaries);
  if (takes_many(context, args, temporaries)) {
    router(context, router_args(args, temporaries));
    return run_many_down(context, p);
  }
  if (device.is_dry_run()) return;
  const gemm::Shape shape = gemm::shape_of(p.weight, p.in, 1, context.need_batch_invariant);
  const gemm::Split split = gemm::make_split(shape, device.info().num_sms);
  const int tokens = gemm::tile_tokens(shape);
  const DownParams params =
      make_down_params(p, router_args(args, temporaries), split, tokens, make_tma_map);
  LaunchShape grid = gemm::launch_shape(shape, split, tokens);
  grid.grid = params.product_ctas + params.routing_ctas;
  gemm::with_q8_config(shape.format, tokens, [&](auto config) {
    launch(device, "moe_down", down_kernel<decltype(config)>, grid, params);
  });
}

const char* reject_router(const MoeArgs& args) {
  if (args.experts_per_token > kWarp) return "more choices than lanes";
  if (args.gate.n > gemm::experts::kMaxExperts) return "more than 384 experts";
  return nullptr;
}

Intermediates shapes_of_intermediates(const MoeArgs& args) {
  return make_intermediates(args, [](DType dtype, std::initializer_list<int64_t> shape) {
    return TensorView(TensorMeta::contiguous(dtype, shape), nullptr);
  });
}

}  // namespace

const char* reject_inputs(const Context& context, const MoeArgs& args) {
  if (args.shared.is_image()) return "kernel images of the shared expert";
  const ExpertWeights& shared = shared_expert(args);
  const bool kbit = shared.w2.format == WeightFormat::kKbit;
  // Where the bits of a token must not depend on the batch, larger batches take the same kernels.
  if (args.x.dim(0) > (kbit ? gemm::kKbitTokens : kMaxTokens) && !context.need_batch_invariant)
    return "for up to 64 tokens, 8 with a k-bit shared expert";
  for (const WeightView* w : {&shared.w1, &shared.w3, &shared.w2})
    if (w->format != (kbit ? WeightFormat::kKbit : WeightFormat::kFp8Block))
      return "for a shared expert in fp8 or k-bit planes";
  if (args.gate.format != WeightFormat::kBF16) return "for a gate in bf16";
  if (const char* why = reject_router(args)) return why;
  const InputTargets targets(args, shapes_of_intermediates(args));
  return kbit ? gemm::reject_kbit(context, args.x, targets.all)
              : gemm::reject(context, args.x, targets.all);
}

const char* reject(const Context& context, const MoeArgs& args) {
  if (const char* why = reject_inputs(context, args)) return why;
  const gemm::Product w2 = product_of_w2(args, shapes_of_intermediates(args));
  return shared_expert(args).w2.format == WeightFormat::kKbit ? gemm::reject_kbit(context, w2)
                                                              : gemm::reject(context, w2);
}

void run(const Context& given, const MoeArgs& args) {
  if (args.x.dim(0) == 0) return;
  experts.check({.x = args.x, .stack = args.shared, .acc = args.acc});
  Context context = given;
  context.force_impl = {};  // of moe
  Scratch& scratch = workspace(context);
  const Scratch::Scope scope(scratch);
  const Intermediates temporaries =
      make_intermediates(args, [&](DType dtype, std::initializer_list<int64_t> shape) {
        return scratch.take(dtype, shape);
      });
  router.check(router_args(args, temporaries));
  run_inputs(context, args, temporaries);
  run_down(context, args, temporaries);
  fetch_chosen(context, args.fetch, temporaries.chosen);
  experts(context, {.x = args.x,
                    .stack = args.routed,
                    .experts = temporaries.chosen,
                    .weights = temporaries.share,
                    .swiglu_limit = args.swiglu_limit,
                    .acc = args.acc,
                    .add = false,
                    .addend = temporaries.y});
}

}  // namespace dsv4::moe_kernel::sm90_few
