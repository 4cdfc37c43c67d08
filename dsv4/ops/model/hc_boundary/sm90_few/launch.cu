#include <algorithm>

#include "dsv4/base/bits.h"
#include "dsv4/device/launch.cuh"
#include "dsv4/ops/model/hc_boundary/sm90_few/finish.cuh"
#include "dsv4/ops/model/hc_boundary/sm90_few/launch.cuh"
#include "dsv4/ops/model/hc_boundary/sm90_few/mix.cuh"

namespace dsv4::hc_boundary_kernel::sm90_few {
namespace {

constexpr int64_t kCtasOfSm = 4;  // of mix

}  // namespace

const char* reject(const Context& context, const HcBoundaryArgs& args) {
  if (context.device->info().major != 9) return "tuned for Hopper";
  if (const char* const why = reject_homes(context, args)) return why;
  // Where the bits of a token must not depend on the batch, larger batches take the same kernels.
  if (args.streams.dim(0) > kMaxTokens && !context.need_batch_invariant)
    return "more than 64 tokens";
  if (args.streams.dim(1) != kStreams) return "wants 4 streams";
  const int64_t d = args.streams.dim(2);
  if (d % (kRun * kWarp) != 0 || d > kSlice * kMaxSlices)
    return "wants d a multiple of 256, at most 8192";
  if (args.streams.dtype != DType::kBF16 || args.x.dtype != DType::kBF16)
    return "wants bf16 streams and x";
  if (!packs(args.streams, kRun) || !packs(args.x, kRun) || !packs(args.norm, kRun))
    return "rows are not on 16 bytes";
  if (args.codes.rank > 0 && (!args.codes.is_contiguous() || !args.scales.is_contiguous()))
    return "wants contiguous codes";
  return nullptr;
}

Params launch_mix(const Context& context, const HcBoundaryArgs& args) {
  Device& device = *context.device;
  const int64_t t = args.streams.dim(0), slices = num_slices(args);
  const TensorView partial = device.workspace().take(DType::kF32, {t, kSums, slices});
  const Params params = make_params(args, partial.as<float>());
  with_float_type(args.y.rank > 0 ? args.y.dtype : DType::kBF16, [&](auto y) {
    using Y = decltype(y);
    const int tokens = t < 4 ? 1 : t <= 8 ? 4 : 8;  // of a CTA at a time
    // CTAs that fit on the GPU together, of many tokens: fn is read once for all runs of a CTA.
    const int64_t runs = ceil_div(t, tokens);
    const int64_t together =
        std::max<int64_t>(kMaxTokens / tokens, kCtasOfSm * device.info().num_sms / slices);
    launch(device, "hc_boundary mix",
           tokens == 1   ? mix_kernel<1, Y>
           : tokens == 4 ? mix_kernel<4, Y>
                         : mix_kernel<8, Y>,
           {.grid = slices,
            .block = kMixWarps * kWarp,
            .grid_y = std::min(runs, together),
            .pdl = true},
           params);
  });
  return params;
}

void run(const Context& context, const HcBoundaryArgs& args) {
  const Scratch::Scope scope(context.device->workspace());
  const Params params = launch_mix(context, args);
  with_float_type(args.norm.dtype, [&](auto norm) {
    launch(*context.device, "hc_boundary finish", finish_kernel<decltype(norm)>,
           {.grid = args.streams.dim(0),
            .block = static_cast<int>(args.streams.dim(2) / kRun),
            .grid_y = 2,
            .pdl = true},
           params);
  });
}

}  // namespace dsv4::hc_boundary_kernel::sm90_few
