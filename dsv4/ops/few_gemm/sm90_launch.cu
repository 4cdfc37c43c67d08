#include "dsv4/device/alignment.h"
#include "dsv4/ops/few_gemm/kernel.cuh"
#include "dsv4/ops/few_gemm/launch.cuh"
#include "dsv4/ops/few_gemm/launch_shape.cuh"

namespace dsv4::few_gemm {
namespace {

constexpr int64_t kMapAlign = 16;  // of rows in a tensor map

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

}  // namespace

const char* reject(const Context& context, const Product& p) {
  if (context.device->info().major != 9) return "for Hopper";
  if (context.numerics == Numerics::kExact) return "exact numerics";
  if (const char* why = reject_weight(p.weight)) return why;
  if (const char* why = reject_activations(p.weight, p.in)) return why;
  if (p.groups > 1 && p.weight.k % kScaleColumns != 0)
    return "columns of a group must be a multiple of 128";
  return reject(shape_of(p.weight, p.in, p.groups));
}

void run(const Context& context, const Product& p) {
  Device& device = *context.device;
  const int64_t t = p.in.x.dim(0);
  if (t == 0 || device.is_dry_run()) return;
  const Shape shape = shape_of(p.weight, p.in, p.groups);
  const Split split = make_split(shape, device.info().num_sms);
  const int tokens = tile_tokens(t);
  const Params<1> params = make_params(p, split, tokens, make_tma_map);
  with_config(shape.format, tokens, [&](auto config) {
    using C = decltype(config);
    launch(device, "few_gemm", few_gemm_kernel<C, Params<1>, StoreTile<Params<1>>>,
           launch_shape(shape, split, tokens), params);
  });
}

}  // namespace dsv4::few_gemm
