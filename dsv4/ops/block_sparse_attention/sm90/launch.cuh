// The Hopper kernel (config.cuh): roles by warpgroup, and its launch.

#pragma once

#include <algorithm>

#include "dsv4/device/launch.cuh"
#include "dsv4/device/ptx/setmaxnreg.cuh"
#include "dsv4/device/tma_map.h"
#include "dsv4/ops/block_sparse_attention/sm90/consumer.cuh"
#include "dsv4/ops/block_sparse_attention/sm90/plan.h"
#include "dsv4/ops/block_sparse_attention/sm90/producer.cuh"

namespace dsv4::block_sparse_attention_kernel::sm90 {

static_assert(kBlock == kBlockSize);

template <class C>
__global__ void __launch_bounds__(kThreads, 1)
    attend_kernel(const __grid_constant__ Params params) {
#if __CUDA_ARCH_FEAT_SM90_ALL
  auto& shared = *reinterpret_cast<Shared<C>*>(ptx::dynamic_smem());
  if (threadIdx.x == 0) shared.init();
  __syncthreads();
  if (threadIdx.x < kGroup) {
    ptx::setmaxnreg_dec<kProducerRegisters>();
    if (threadIdx.x < kWarp) Producer<C>(params, shared).run();
  } else {
    ptx::setmaxnreg_inc<kConsumerRegisters>();
    Consumer<C>(params, shared).run();
  }
#else
  __trap();  // compiled for another architecture; reject() refuses those
#endif
}

inline CUtensorMap q_map(const ConstTensorView& q) {
  return make_tma_map({.base = q.data,
                       .dtype = q.dtype,
                       .rank = 3,
                       .size = {q.dim(2), q.dim(1), q.dim(0)},
                       .stride = {2, 2 * q.stride[1], 2 * q.stride[0]},
                       .box = {kPanel, 1, kBlock},
                       .swizzle = TmaSwizzle::k128});
}

// [t, h, d] is one page of t rows.
inline CUtensorMap kv_map(const ConstTensorView& kv, int64_t box_rows) {
  const bool paged = kv.rank == 4;
  const size_t rows = paged ? 1 : 0;
  const int64_t row_bytes = 2 * kv.stride[rows], t = kv.shape[rows];
  return make_tma_map(
      {.base = kv.data,
       .dtype = kv.dtype,
       .rank = 4,
       .size = {kv.dim(-1), kv.dim(-2), t, paged ? kv.dim(0) : 1},
       .stride = {2, 2 * kv.stride[rows + 1], row_bytes, paged ? 2 * kv.stride[0] : t * row_bytes},
       .box = {kPanel, 1, box_rows, 1},
       .swizzle = TmaSwizzle::k128});
}

template <class C>
void launch_kernel(Device& device, const BlockSparseAttentionArgs& args) {
  const int64_t page_size = page_size_of(args);
  const int64_t box_rows = page_size == 0 ? C::kKeys : std::min<int64_t>(page_size, C::kKeys);
  const bool dense = args.lists.empty();
  const Scratch::Scope scope(device.workspace());
  const TensorView counter = device.workspace().take(DType::kI32, {1});
  if (device.is_dry_run()) return;
  cuda_check(cudaMemsetAsync(counter.data, 0, sizeof(int), device.stream()), "attention counter");
  const Params params{
      .q = q_map(args.q),
      .k = kv_map(args.k, box_rows),
      .v = kv_map(args.v, box_rows),
      .cu_q = args.batch.cu_q.as<int>(),
      .cu_kv = args.batch.cu_kv.as<int>(),
      .causal = args.batch.causal,
      .sequences = static_cast<int>(args.batch.size()),
      .heads = static_cast<int>(args.q.dim(1)),
      .group = static_cast<int>(args.q.dim(1) / args.k.dim(-2)),
      .q_blocks = static_cast<int>(q_blocks_of(args)),
      .counts = dense ? nullptr : args.lists.counts.as<int>(),
      .indices = dense ? nullptr : args.lists.indices.as<int>(),
      .slots = dense ? 0 : static_cast<int>(args.lists.indices.dim(3)),
      .page_table = page_size == 0 ? nullptr : args.page_table.as<int>(),
      .table_stride = page_size == 0 ? 0 : args.page_table.stride[0],
      .page_size = static_cast<int>(page_size),
      .box_rows = static_cast<int>(box_rows),
      .out = args.out.data,
      .out_row = args.out.stride[0],
      .out_head = args.out.stride[1],
      .lse = args.lse.empty() ? nullptr : args.lse.as<float>(),
      .lse_head = args.lse.empty() ? 0 : args.lse.stride[0],
      .scale = args.scale,
      .num_items = static_cast<int>(items_of(args)),
      .next_item = counter.as<int>(),
  };
  launch(device, "block_sparse_attention", attend_kernel<C>,
         {.grid = std::min<int64_t>(params.num_items, device.info().num_sms),
          .block = kThreads,
          .shared = sizeof(Shared<C>)},
         params);
}

// kKeys: keys of a tile.
template <int kD, int kDv, int kKeys, int kStages>
void run_dtypes(Device& device, const BlockSparseAttentionArgs& args) {
  if (args.q.dtype == DType::kBF16) {
    launch_kernel<Config<bf16, kD, kDv, kKeys, kStages>>(device, args);
  } else {
    launch_kernel<Config<f16, kD, kDv, kKeys, kStages>>(device, args);
  }
}

}  // namespace dsv4::block_sparse_attention_kernel::sm90
