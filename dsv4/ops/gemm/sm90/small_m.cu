#include <algorithm>

#include "dsv4/device/alignment.h"
#include "dsv4/ops/gemm/sm90/small_m/call.cuh"
#include "dsv4/ops/gemm/sm90/small_m/kernel.cuh"
#include "dsv4/ops/gemm/sm90/small_m/launch_shape.cuh"
#include "dsv4/ops/gemm/sm90/small_m/two_formats.cuh"
#include "dsv4/ops/gemm/x/stored_f16.cuh"

namespace dsv4::gemm {
namespace {

constexpr int64_t kMapAlign = 16;   // of rows in a tensor map
constexpr int64_t kScaleAlign = 8;  // of rows of E4M4 scales: those of a slab

const char* reject_weight(const WeightView& w) {
  if (w.format != WeightFormat::kFp8Block && w.format != WeightFormat::kBF16)
    return "for fp8 and bf16 weights";
  if (w.n == 0 || w.k == 0) return "for weights that are not empty";
  if (w.format == WeightFormat::kFp8Block && w.k % kFp8BlockSize != 0)
    return "columns of fp8 weights must be a multiple of 128";
  if (!rows_on(w.data, kMapAlign)) return "rows of the weight are not 16-byte aligned";
  return nullptr;
}

const char* reject_activations(const WeightView& w, const Activations& a) {
  const bool fp8 = w.format == WeightFormat::kFp8Block;
  if (a.x.dtype == DType::kF32) return "f32 activations";
  if (a.x.dtype == DType::kE4M3 && !fp8) return "quantized activations with bf16 weights";
  if (a.quantize && (!fp8 || a.x.dtype != DType::kBF16))
    return "only bf16 activations are quantized, for fp8 weights";
  if (!rows_on(a.x, kMapAlign)) return "rows of x are not 16-byte aligned";
  return nullptr;
}

const char* reject_planes(const WeightView& w) {
  if (w.format != WeightFormat::kKbit || w.bits < 4 || !w.e4m3_codebook)
    return "for k4-e4m3 and k5-e4m3 weights";
  if (w.n == 0 || w.k == 0 || w.k % kPlaneColumns != 0) return "columns must be a multiple of 256";
  if (!rows_on(w.data, kMapAlign) || !rows_on(w.scale, kScaleAlign))
    return "rows of the weight are not 16-byte aligned, or of its scales not 8-byte";
  return nullptr;
}

const char* reject_context(const Context& context) {
  if (context.device->info().major != 9) return "for Hopper";
  if (context.numerics == Numerics::kExact) return "exact numerics";
  return nullptr;
}

}  // namespace

const char* reject(const Context& context, const Product& p) {
  if (const char* why = reject_context(context)) return why;
  if (const char* why = reject_weight(p.weight)) return why;
  if (const char* why = reject_activations(p.weight, p.in)) return why;
  if (p.groups > 1 && p.weight.k % kScaleColumns != 0)
    return "columns of a group must be a multiple of 128";
  return reject(shape_of(p.weight, p.in, p.groups, context.need_batch_invariant));
}

const char* reject_kbit(const Context& context, const Product& p) {
  if (const char* why = reject_context(context)) return why;
  if (const char* why = reject_planes(p.weight)) return why;
  if (p.in.x.dtype != DType::kBF16 && (p.in.quantize || p.in.x.dtype != DType::kE4M3))
    return "f32 activations";
  if (!rows_on(p.in.x, kMapAlign)) return "rows of x are not 16-byte aligned";
  return reject(shape_of(p.weight, p.in, p.groups, context.need_batch_invariant));
}

void store_f16(Device& device, const ConstTensorView& x, const StoredF16& to) {
  if (device.is_dry_run()) return;
  const StoreF16Params params = make_store_f16_params(x, to);
  launch(device, "few_gemm_f16", store_f16_kernel,
         {.grid = ceil_div(params.groups, kStoreF16Groups), .block = kStoreF16Threads, .pdl = true},
         params);
}

void run(const Context& context, const Product& p) {
  Device& device = *context.device;
  const int64_t t = p.in.x.dim(0);
  if (t == 0 || device.is_dry_run()) return;
  const Shape shape = shape_of(p.weight, p.in, p.groups, context.need_batch_invariant);
  const Split split = make_split(shape, device.info().num_sms);
  const int tokens = tile_tokens(shape);
  const Params<1> params = make_params(p, split, tokens, make_tma_map);
  with_config(shape.format, tokens, [&](auto config) {
    using C = decltype(config);
    launch(device, "few_gemm", small_m_kernel<C, Params<1>, StoreTile<Params<1>>>,
           launch_shape(shape, split, tokens), params);
  });
}

namespace {

const char* reject_two_formats(const Context& context, const ConstTensorView& x,
                               std::span<const Target> targets) {
  const auto first = std::count_if(targets.begin(), targets.end(), TwoFormats::takes_q8);
  const auto bf16 = static_cast<int64_t>(targets.size()) - first;
  if (first < 1 || first > kQ8Targets || bf16 > kBf16Targets)
    return "too many weights, or none that takes quantized x";
  const TwoFormats formats(targets, x.dim(0), x.dim(1), context.device->info().num_sms, 0,
                           context.need_batch_invariant);
  const char* why = reject(formats.q8);
  return why != nullptr ? why : reject(formats.bf16);
}

}  // namespace

const char* reject(const Context& context, const ConstTensorView& x,
                   std::span<const Target> targets) {
  if (const char* why = reject_context(context)) return why;
  for (const Target& target : targets) {
    if (const char* why = reject_weight(target.weight)) return why;
    if (const char* why =
            reject_activations(target.weight, {.x = x, .quantize = TwoFormats::takes_q8(target)}))
      return why;
  }
  return reject_two_formats(context, x, targets);
}

const char* reject_kbit(const Context& context, const ConstTensorView& x,
                        std::span<const Target> targets) {
  if (const char* why = reject_context(context)) return why;
  for (const Target& target : targets) {
    const bool first = TwoFormats::takes_q8(target);
    if (const char* why = first ? reject_planes(target.weight) : reject_weight(target.weight))
      return why;
    if (first && format_of(target.weight, {.quantize = true}) != TwoFormats::q8_format(targets))
      return "weights of different K";
  }
  if (x.dtype != DType::kBF16) return "for bf16 activations";
  if (!rows_on(x, kMapAlign)) return "rows of x are not 16-byte aligned";
  return reject_two_formats(context, x, targets);
}

void run(const Context& context, const ConstTensorView& x, const Activations& quantized,
         std::span<const Target> targets) {
  Device& device = *context.device;
  if (x.dim(0) == 0 || device.is_dry_run()) return;
  if (large_m::takes(context, x, targets)) return large_m::run(context, x, quantized, targets);
  const TwoFormats formats(targets, x.dim(0), x.dim(1), device.info().num_sms, 0,
                           context.need_batch_invariant);
  const TwoFormatParams params =
      make_two_format_params(formats, targets, x, quantized, make_tma_map);
  with_q8_config(formats.q8.format, formats.tokens, [&](auto config) {
    launch(device, "few_gemm_pair", store_two_formats_kernel<decltype(config)>(),
           launch_shape(formats), params);
  });
}

}  // namespace dsv4::gemm
