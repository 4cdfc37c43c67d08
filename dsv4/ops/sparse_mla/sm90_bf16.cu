// sparse_mla.h on Hopper's tensor cores for pools of bf16 rows, as prefill reads them: d 512 or
// 576, d_v 512, any number of heads (64 at a time: fewer cost as much as 64).
//
//   block   a query and 64 of its heads, one after another; three warpgroups (sm90_bf16_plan.cuh)
//   keys    never split over blocks, so a query's bits depend on nothing else
//
// Rounds as kOfficial does, but the weights relative to the largest dot so far, not of all.

#include <algorithm>

#include "dsv4/device/alignment.h"
#include "dsv4/device/launch.cuh"
#include "dsv4/ops/sparse_mla/sm90_bf16_attend.cuh"
#include "dsv4/ops/sparse_mla/sm90_bf16_gather.cuh"
#include "dsv4/ops/sparse_mla/sparse_mla_cuda.h"

namespace dsv4 {
namespace sm90_bf16 {
namespace {

// Blocks walk over items blockIdx.x, + gridDim.x, ...
template <int kPieces, class Out>
__global__ void __launch_bounds__(kThreads, 1) attend_kernel(const __grid_constant__ Inputs in) {
#if __CUDA_ARCH_FEAT_SM90_ALL
  auto& shared = *reinterpret_cast<Shared<kPieces>*>(ptx::block_memory());
  if (threadIdx.x == 0) shared.init();
  __syncthreads();
  if (threadIdx.x >= 2 * kGroup) {
    ptx::lower_registers<kProducerRegisters>();
    produce(in, shared);
  } else {
    ptx::raise_registers<kConsumerRegisters>();
    consume<kPieces, Out>(in, shared);
  }
#else
  __trap();  // compiled for another architecture; the row rejects those
#endif
}

template <int kPieces, class Out>
void attend(Device& device, const Inputs& in) {
  launch(device, "sparse_mla bf16", attend_kernel<kPieces, Out>,
         {.grid = std::min(in.items, device.info().processors),
          .block = kThreads,
          .shared = sizeof(Shared<kPieces>)},
         in);
}

// `args` as by_request() gives them.
Inputs inputs(const SparseMlaArgs& args) {
  const int64_t head_blocks = ceil_div(args.q.dim(2), kHeads);
  Inputs in{.window = paged_list(args.window),
            .compressed = paged_list(args.compressed),
            .q = args.q.as<bf16>(),
            .out = args.out.data,
            .lse = nullptr,
            .max_logits = nullptr,
            .sink = args.sink.empty() ? nullptr : args.sink.as<float>(),
            .q_at = row_strides(args.q),
            .out_at = row_strides(args.out),
            .lse_at = {},
            .max_at = {},
            .scale = args.scale,
            .normalized = args.normalized,
            .heads = static_cast<int>(args.q.dim(2)),
            .items = static_cast<int>(args.q.dim(0) * args.q.dim(1) * head_blocks),
            .head_blocks = Divisor(head_blocks),
            .s_q = Divisor(args.q.dim(1))};
  if (!args.lse.empty()) in.lse = args.lse.as<float>(), in.lse_at = sum_strides(args.lse);
  if (!args.max_logits.empty()) {
    in.max_logits = args.max_logits.as<float>(), in.max_at = sum_strides(args.max_logits);
  }
  return in;
}

const char* reject_list(const KvList& list) {
  if (listed(list) == 0) return nullptr;
  if (list.pool.pages.dtype != DType::kBF16) return "wants bf16 rows";
  if (!rows_on(list.pool.pages, 16)) return "pages are not on 16 bytes";
  return nullptr;
}

}  // namespace
}  // namespace sm90_bf16

const char* sparse_mla_sm90_bf16_reject(const Context& context, const SparseMlaArgs& args) {
  using namespace sm90_bf16;
  if (context.numerics != Numerics::kOfficial) return "bf16 inside";
  if (context.device->info().major != 9) return "wgmma is Hopper's";
  const int64_t d = args.q.dim(-1);
  if (args.q.dtype != DType::kBF16 || (d != 512 && d != 576) || args.out.dim(-1) != kValueWidth)
    return "wants bf16 q of 512 or 576 values, d_v 512";
  if (!rows_on(args.q, 16) || !rows_on(args.out, 16)) return "q or out is not on 16 bytes";
  if (args.q.numel() / d > INT32_MAX) return "more than 2^31 heads of queries";
  if (const char* reason = reject_list(args.window)) return reason;
  return reject_list(args.compressed);
}

void sparse_mla_sm90_bf16(const Context& context, const SparseMlaArgs& args) {
  using namespace sm90_bf16;
  if (args.q.numel() == 0) return;
  const Inputs in = inputs(by_request(args));
  with_float_type(args.out.dtype, [&](auto out) {
    using Out = decltype(out);
    args.q.dim(-1) == 512 ? attend<kValuePieces, Out>(*context.device, in)
                          : attend<kValuePieces + 1, Out>(*context.device, in);
  });
}

}  // namespace dsv4
