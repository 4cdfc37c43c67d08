#include "dsv4/ops/model/hc_boundary/block_input.h"

#include "dsv4/ops/gemm/sm90/small_m/launch_shape.cuh"
#include "dsv4/ops/gemm/x/boundary.cuh"
#include "dsv4/ops/model/hc_boundary/sm90_few/launch.cuh"
#include "dsv4/ops/parts/quant/quant.h"

namespace dsv4 {

namespace few = hc_boundary_kernel::sm90_few;

const char* reject_mix(const Context& context, const HcBoundaryArgs& boundary) {
  if (boundary.norm.dtype != DType::kBF16) return "a norm in f32";
  return few::reject(context, boundary);
}

gemm::boundary::Params mix_boundary(const Context& context, const HcBoundaryArgs& boundary) {
  return few::launch_mix(context, boundary);
}

gemm::Activations quantized_input(const Context& context, const HcBoundaryArgs& boundary,
                                  const ConstTensorView& x) {
  const int64_t t = x.dim(0), k = x.dim(1);
  if (t <= gemm::kQuantizeTokens) {
    if (is_given(boundary)) hc_boundary(context, boundary);
    return {.x = x, .quantize = true};
  }
  Scratch& scratch = context.device->workspace();
  const TensorView codes = scratch.take(DType::kE4M3, {t, k});
  const TensorView scales = scratch.take(DType::kE8M0, {t, k / gemm::kScaleColumns});
  if (is_given(boundary)) {
    HcBoundaryArgs with_codes = boundary;
    with_codes.codes = codes, with_codes.scales = scales;
    hc_boundary(context, with_codes);
  } else {
    quantize_q8(context, {.x = x, .codes = codes, .scales = scales, .group = gemm::kScaleColumns});
  }
  return {.x = codes, .x_scale = scales};
}

namespace {

// Whether mix and the products are the whole call.
bool run_in_two_launches(const Context& context, const HcBoundaryArgs& boundary,
                         const ConstTensorView& x, std::span<const gemm::Target> targets) {
  Device& device = *context.device;
  const int64_t t = x.dim(0), k = x.dim(1);
  const gemm::TwoFormats call(targets, t, k, device.info().num_sms, gemm::boundary_bytes(t, k),
                              context.need_batch_invariant);
  if (reject_mix(context, boundary) != nullptr || gemm::reject_boundary(t, k, call) != nullptr)
    return false;
  const Scratch::Scope scope(device.workspace());
  const gemm::boundary::Params mixed = mix_boundary(context, boundary);
  if (device.is_dry_run()) return true;
  using P = gemm::TwoFormatParams;
  const gemm::WithBoundary<P> params{
      gemm::make_two_format_params(call, targets, x, {.x = x, .quantize = true}, make_tma_map),
      mixed};
  gemm::with_boundary_config(call.q8.format, call.tokens, [&](auto config) {
    launch(device, "few_gemm_pair with boundary",
           gemm::boundary_kernel<decltype(config), P, gemm::StoreTile<P::Q8>,
                                 gemm::StoreTile<P::Bf16>>,
           gemm::launch_shape_with_boundary(call), params);
  });
  return true;
}

}  // namespace

void input_products(const Context& context, const HcBoundaryArgs& boundary,
                    const ConstTensorView& x, std::span<const gemm::Target> targets) {
  if (x.dim(0) == 0) return;
  if (is_given(boundary) && run_in_two_launches(context, boundary, x, targets)) return;
  const Scratch::Scope scope(context.device->workspace());
  gemm::run(context, x, quantized_input(context, boundary, x), targets);
}

}  // namespace dsv4
