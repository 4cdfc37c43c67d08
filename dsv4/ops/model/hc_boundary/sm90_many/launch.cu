// The implementation sm90_many of hc_boundary.h: prompts and large batches, in two launches whose
// time is that of reading and writing the streams (post_mix.cuh, finish.cuh).

#include "dsv4/device/launch.cuh"
#include "dsv4/ops/model/hc_boundary/sm90_many/finish.cuh"
#include "dsv4/ops/model/hc_boundary/sm90_many/post_mix.cuh"

namespace dsv4::hc_boundary_kernel::sm90_many {
namespace {

constexpr int64_t kFewTokens = 32;  // up to here sm90_few, whose CTAs have fewer columns

void launch_post_mix(Device& device, const HcBoundaryArgs& args, const ManyParams& params) {
  with_float_type(args.y.rank > 0 ? args.y.dtype : DType::kBF16, [&](auto y) {
    launch(device, "hc_boundary post_mix", post_mix_kernel<decltype(y)>,
           {.grid = params.tiles,
            .block = kPostMixThreads,
            .grid_y = ceil_div(params.call.t, params.blocks * kBlock),
            .shared = sizeof(PostMixShared),
            .pdl = true},
           params);
  });
}

void launch_finish(Device& device, const HcBoundaryArgs& args, const ManyParams& params) {
  with_float_type(args.norm.dtype, [&](auto norm) {
    using W = decltype(norm);
    launch(device, "hc_boundary finish_many",
           params.call.d <= kUsualColumns ? finish_kernel<W, kUsualColumns>
                                          : finish_kernel<W, kMaxColumns>,
           {.grid = ceil_div(params.call.t, kFinishTokens),
            .block = params.call.d / kRun + kWarp,
            .pdl = true},
           params);
  });
}

}  // namespace

const char* reject(const Context& context, const HcBoundaryArgs& args) {
  if (context.device->info().major != 9) return "tuned for Hopper";
  if (context.numerics == Numerics::kExact) return "sums of tensor cores are not exact f32";
  if (context.need_batch_invariant) return "fewer tokens are summed in another order";
  if (args.streams.dim(0) <= kFewTokens) return "for more than 32 tokens";
  if (args.streams.dim(1) != kStreams) return "wants 4 streams";
  const int64_t d = args.streams.dim(2);
  if (d % (kRun * kWarp) != 0 || d > kMaxColumns) return "wants d a multiple of 256, at most 7168";
  if (args.streams.dtype != DType::kBF16 || args.x.dtype != DType::kBF16)
    return "wants bf16 streams and x";
  const bool update = args.y.rank > 0;
  if (!packs(args.streams, kRun) || !packs(args.x, kRun) || !packs(args.norm, kRun) ||
      !packs(args.hc.fn, kRun) ||
      (update &&
       (!packs(args.y, kRun) || !packs(args.y_post, kStreams) || !packs(args.y_comb, kStreams))))
    return "rows are not on 16 bytes";
  if (!args.y_words.empty()) return "exchanges nothing";
  for (int r = 0; r < args.y_homes.count; ++r)
    if (args.y_homes.end[r] % kColumns != 0) return "wants homes of multiples of 128 columns";
  if (args.codes.rank > 0 && (!args.codes.is_contiguous() || !args.scales.is_contiguous()))
    return "wants contiguous codes";
  return nullptr;
}

void run(const Context& context, const HcBoundaryArgs& args) {
  Device& device = *context.device;
  const Scratch::Scope scope(device.workspace());
  const int64_t t = args.streams.dim(0), tiles = args.streams.dim(2) / kColumns;
  if (t == 0) return;
  const TensorView dots = device.workspace().take(DType::kF32, {tiles, t, kMixes});
  const TensorView squares = device.workspace().take(DType::kF32, {tiles, t});
  const ManyParams params{.call = sm90_few::make_params(args, nullptr),
                          .dots = dots.as<float>(),
                          .squares = squares.as<float>(),
                          .y_homes = args.y_homes,
                          .tiles = static_cast<int>(tiles),
                          .blocks = blocks_of_cta(t, tiles, device.info().num_sms)};
  launch_post_mix(device, args, params);
  launch_finish(device, args, params);
}

}  // namespace dsv4::hc_boundary_kernel::sm90_many
