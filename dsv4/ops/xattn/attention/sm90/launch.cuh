// The launch of the Hopper kernel (kernel.cuh).

#pragma once

#include <algorithm>

#include "dsv4/device/launch.cuh"
#include "dsv4/ops/xattn/attention/sm90/kernel.cuh"
#include "dsv4/ops/xattn/attention/sm90/params.cuh"

namespace dsv4::block_sparse_attention_kernel::sm90 {

template <class C>
void launch_kernel(Device& device, const BlockSparseAttentionArgs& args) {
  const int64_t items = items_of(args);
  const Scratch::Scope scope(device.workspace());
  const TensorView counter = device.workspace().take(DType::kI32, {1});
  if (device.is_dry_run()) return;
  cuda_check(cudaMemsetAsync(counter.data, 0, sizeof(int), device.stream()), "attention counter");
  const Params params =
      make_params<C>(args, counter.as<int>(), [](const TmaBox& box) { return make_tma_map(box); });
  launch(device, "block_sparse_attention", attend_kernel<C>,
         {.grid = std::min<int64_t>(items, device.info().num_sms),
          .block = kThreads,
          .shared = sizeof(Shared<C>)},
         params);
}

// Keys of a tile, tiles of K and V in shared memory, and query blocks there. 128 registers of O, at
// 256 values, leave room for 64 keys.
template <class T, int kD, int kDv>
using ConfigOf = Config<T, kD, kDv, kD == 256 ? 64 : 128, kD == 64 ? 4 : 2, kD <= 128 ? 2 : 1>;

template <int kD, int kDv>
void run_heads(Device& device, const BlockSparseAttentionArgs& args) {
  if (args.q.dtype == DType::kBF16) {
    launch_kernel<ConfigOf<bf16, kD, kDv>>(device, args);
  } else {
    launch_kernel<ConfigOf<f16, kD, kDv>>(device, args);
  }
}

}  // namespace dsv4::block_sparse_attention_kernel::sm90
