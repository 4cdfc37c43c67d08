#include "dsv4/ops/xattn/scores/sm90_fp8/scores.h"

#include "dsv4/ops/xattn/scores/sm90/launch.cuh"
#include "dsv4/ops/xattn/scores/sm90/scores.h"
#include "dsv4/ops/xattn/scores/sm90_fp8/quantize.cuh"

namespace dsv4::xattn_scores_kernel::sm90_fp8 {
namespace {

template <class T>
void launch_quantize(Device& device, const ConstTensorView& x, const TensorView& to) {
  const int64_t rows = x.dim(0), width = x.dim(1) * x.dim(2);
  launch(device, "xattn_scores: e4m3", quantize_kernel<T>,
         {.grid = ceil_div(rows * width, int64_t{kThreads} * kPer), .block = kThreads}, x.as<T>(),
         x.stride[0], rows, static_cast<int>(width), to.as<__nv_fp8_e4m3>());
}

// [t, heads, d] e4m3 in the workspace.
TensorView quantized(Device& device, const ConstTensorView& x) {
  const TensorView to = device.workspace().take(DType::kE4M3, {x.dim(0), x.dim(1), x.dim(2)});
  if (x.dtype == DType::kBF16) {
    launch_quantize<bf16>(device, x, to);
  } else {
    launch_quantize<f16>(device, x, to);
  }
  return to;
}

}  // namespace

const char* reject(const Context& context, const XattnScoresArgs& args) {
  if (const char* why = sm90::reject(context, args)) return why;
  if (context.numerics != Numerics::kOfficial) return "q and k are rounded";
  if (!args.page_table.empty()) return "wants rows of k, not pages";
  if (args.q.dim(2) % 128 != 0) return "wants a multiple of 128 columns";
  const int64_t groups = args.block / args.stride;
  if (groups != 8 && groups != 16) return "wants 8 or 16 groups of S tokens in a block";
  return nullptr;
}

void run(const Context& context, const XattnScoresArgs& args) {
  Device& device = *context.device;
  if (args.sums.numel() == 0) return;
  const Scratch::Scope scope(device.workspace());
  XattnScoresArgs rounded = args;
  rounded.q = quantized(device, args.q);
  rounded.k = quantized(device, args.k);
  if (args.block / args.stride == 8) {
    sm90::launch_kernel<sm90::Config<__nv_fp8_e4m3, 8>>(device, rounded);
  } else {
    sm90::launch_kernel<sm90::Config<__nv_fp8_e4m3, 16>>(device, rounded);
  }
}

}  // namespace dsv4::xattn_scores_kernel::sm90_fp8
