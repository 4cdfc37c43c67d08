#include "dsv4/ops/gemm/sm90/large_m.h"

#include "dsv4/device/launch.cuh"
#include "dsv4/ops/gemm/sm90/large_m/call.cuh"

namespace dsv4::gemm::large_m {
namespace {

int rank_bits_of(const Context& context, const Product& p) {
  return make_split(shape_of(p.weight, p.in, p.groups, context.need_batch_invariant),
                    context.device->info().num_sms)
      .rank_bits;
}

const char* name_of(Format format) {
  return format == Format::kFp8    ? "many_gemm fp8"
         : format == Format::kBf16 ? "many_gemm bf16"
                                   : "many_gemm f16";
}

template <class C, class Epilogue>
void launch_kernel(Device& device, const Params& params) {
  launch(device, name_of(C::kFormat), large_m_kernel<C, Epilogue>,
         {.grid = num_ctas(params, device.info().num_sms),
          .block = kThreads,
          .shared = sizeof(Shared<C>),
          .cluster = kCtas,
          .pdl = true},
         params);
}

void launch_format(Device& device, Format format, const Params& params) {
  with_format(format,
              [&](auto config) { launch_kernel<decltype(config), StoreSums>(device, params); });
}

}  // namespace

const char* reject(const Context& context, const Product& p) {
  if (const char* why = gemm::reject(context, p)) return why;
  if (converts_x(format_of(p.weight, p.in), p.in)) return "for activations as they are multiplied";
  return nullptr;
}

void run(const Context& context, const Product& p) {
  Device& device = *context.device;
  if (p.in.x.dim(0) == 0 || device.is_dry_run()) return;
  launch_format(device, format_of(p.weight, p.in),
                make_params(p, rank_bits_of(context, p), make_tma_map));
}

void run_whole_rows(const Context& context, const Product& p) {
  Device& device = *context.device;
  if (p.in.x.dim(0) == 0 || device.is_dry_run()) return;
  launch_format(device, format_of(p.weight, p.in), make_params(p, 0, make_tma_map));
}

void run_q8(const Context& context, const Product& p, const TensorView& codes,
            const TensorView& scales) {
  Device& device = *context.device;
  if (p.in.x.dim(0) == 0 || device.is_dry_run()) return;
  launch_kernel<Config<Format::kFp8Bf16>, StoreQ8>(
      device, make_q8_params(p, rank_bits_of(context, p), codes, scales, make_tma_map));
}

bool takes(const Context& context, const ConstTensorView& x, std::span<const Target> targets) {
  return takes(context, x.dim(0), kFewForTargets) && TwoFormats::q8_format(targets) == Format::kFp8;
}

void run(const Context& context, const ConstTensorView& x, const Activations& quantized,
         std::span<const Target> targets) {
  Device& device = *context.device;
  if (x.dim(0) == 0 || device.is_dry_run()) return;
  const TwoFormats formats(targets, x.dim(0), x.dim(1), device.info().num_sms, 0,
                           context.need_batch_invariant);
  const Split& q8 = formats.split.q8;
  launch_format(
      device, Format::kFp8,
      make_target_params(targets, Format::kFp8, quantized, x.dim(1), q8.rank_bits, make_tma_map));
  const Params bf16 = make_target_params(targets, Format::kBf16, Activations{.x = x}, x.dim(1),
                                         formats.split.bf16.rank_bits, make_tma_map);
  if (bf16.tiles > 0) launch_format(device, Format::kBf16, bf16);
}

}  // namespace dsv4::gemm::large_m
