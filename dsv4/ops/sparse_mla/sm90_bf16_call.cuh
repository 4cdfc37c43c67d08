// A call of sm90_bf16.cu: the kernel, and arguments as by_request() gives them -> Inputs and the
// kernel for them.

#pragma once

#include <algorithm>

#include "dsv4/device/ptx/setmaxnreg.cuh"
#include "dsv4/device/ptx/shared_memory.cuh"
#include "dsv4/ops/sparse_mla/sm90_bf16_attend.cuh"
#include "dsv4/ops/sparse_mla/sm90_bf16_gather.cuh"

namespace dsv4::sm90_bf16 {

// Blocks walk over items blockIdx.x, + gridDim.x, ...
template <int kPieces, class Out>
__global__ void __launch_bounds__(kThreads, 1) attend_kernel(const __grid_constant__ Inputs in) {
#if __CUDA_ARCH_FEAT_SM90_ALL
  auto& shared = *reinterpret_cast<Shared<kPieces>*>(ptx::dynamic_smem());
  if (threadIdx.x == 0) shared.init();
  __syncthreads();
  if (threadIdx.x >= 2 * kGroup) {
    ptx::setmaxnreg_dec<kProducerRegisters>();
    produce(in, shared);
  } else {
    ptx::setmaxnreg_inc<kConsumerRegisters>();
    consume<kPieces, Out>(in, shared);
  }
#else
  __trap();  // compiled for another architecture; the row rejects those
#endif
}

inline Inputs inputs(const SparseMlaArgs& args) {
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

inline int64_t num_blocks(const Inputs& in, int processors) {
  return std::min(in.items, processors);
}

// Calls visit(kernel, bytes of shared memory) with the kernel of a call.
template <class Visit>
void with_kernel(const SparseMlaArgs& args, const Visit& visit) {
  with_float_type(args.out.dtype, [&](auto out) {
    using Out = decltype(out);
    constexpr int kMost = kValuePieces + 1;
    args.q.dim(-1) == kValueWidth
        ? visit(attend_kernel<kValuePieces, Out>, int64_t{sizeof(Shared<kValuePieces>)})
        : visit(attend_kernel<kMost, Out>, int64_t{sizeof(Shared<kMost>)});
  });
}

}  // namespace dsv4::sm90_bf16
