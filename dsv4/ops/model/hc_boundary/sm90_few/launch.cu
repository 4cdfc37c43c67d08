#include <algorithm>

#include "dsv4/base/bits.h"
#include "dsv4/device/launch.cuh"
#include "dsv4/ops/model/hc_boundary/sm90_few/finish.cuh"
#include "dsv4/ops/model/hc_boundary/sm90_few/launch.cuh"
#include "dsv4/ops/model/hc_boundary/sm90_few/mix.cuh"

namespace dsv4::hc_boundary_kernel::sm90_few {
namespace {

constexpr int64_t kCtasOfSm = 4;  // of mix

// How many tokens a CTA of mix has at a time, and the grid.
struct MixShape {
  int64_t tokens, slices, rows;
};

MixShape mix_shape(const Device& device, const HcBoundaryArgs& args) {
  const int64_t t = args.streams.dim(0), slices = num_slices(args);
  const int64_t tokens = t < 4 ? 1 : t <= 8 ? 4 : 8;
  // CTAs that fit on the GPU together, of many tokens: fn is read once for all runs of a CTA.
  const int64_t together =
      std::max<int64_t>(kMaxTokens / tokens, kCtasOfSm * device.info().num_sms / slices);
  return {tokens, slices, std::min(ceil_div(t, tokens), together)};
}

const char* reject_exchange(const Context& context, const HcBoundaryArgs& args) {
  const int64_t item = item_bytes(args.y.dtype);
  if (args.y.numel() * item > PeerWords::kMostBytes) return "more of y than an exchange holds";
  if (!packs(args.y, PeerWords::kBytes / item)) return "rows of y are not on 8 bytes";
  for (int r = 0; r < args.y_words.world; ++r)
    if (args.y_words.end[r] % kSlice != 0) return "wants columns of ranks in multiples of 32";
  const MixShape shape = mix_shape(*context.device, args);
  if (shape.slices * shape.rows > PeerWait::kPlaces) return "more CTAs than an exchange counts";
  return nullptr;
}

}  // namespace

const char* reject(const Context& context, const HcBoundaryArgs& args) {
  if (context.device->info().major != 9) return "tuned for Hopper";
  if (!args.y_homes.empty()) return "columns of y in memory of other ranks";
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
  return args.y_words.empty() ? nullptr : reject_exchange(context, args);
}

Params launch_mix(const Context& context, const HcBoundaryArgs& args) {
  Device& device = *context.device;
  const MixShape shape = mix_shape(device, args);
  const TensorView partial =
      device.workspace().take(DType::kF32, {args.streams.dim(0), kSums, shape.slices});
  const Params params = make_params(args, partial.as<float>());
  const LaunchShape grid{
      .grid = shape.slices, .block = kMixWarps * kWarp, .grid_y = shape.rows, .pdl = true};
  with_float_type(args.y.rank > 0 ? args.y.dtype : DType::kBF16, [&](auto y) {
    using Y = decltype(y);
    if (args.y_words.empty()) {
      launch(device, "hc_boundary mix",
             shape.tokens == 1   ? mix_kernel<1, Y>
             : shape.tokens == 4 ? mix_kernel<4, Y>
                                 : mix_kernel<8, Y>,
             grid, params);
    } else {
      launch(device, "hc_boundary mix with exchange",
             shape.tokens == 1   ? exchanging_mix_kernel<1, Y>
             : shape.tokens == 4 ? exchanging_mix_kernel<4, Y>
                                 : exchanging_mix_kernel<8, Y>,
             grid, params, args.y_words);
    }
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
