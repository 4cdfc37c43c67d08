// Products of few tokens on Hopper.
//
// Problem    out[t, n] = sum_k x[t, k] * w[n, k] for t up to 64: weights are FP8 with block scales,
//            bf16 or bit planes (kbit.cuh), activations Q8 (stored, or quantized here) or bf16. FP8
//            weights and bit planes times bf16 are products of f16: weights exactly, activations
//            scaled by powers of two (quantize_x.cuh)
// Bound      reading the weights: 8 KB per SM in 430 clocks; products of a slab take 100 to 200
// Tiles      weights are M (64 rows), tokens N (8 to 64). A slab is 64 rows x 128 bytes: 8 KB, a
//            stage of the ring. Products of a slab start at zero and are added in f32 times the
//            scales of its 128 columns, which is the official arithmetic, and for bf16 more exact
//            than a long sum in the tensor core
// Roles      warps 0 - 3: consumers | warp 4, lane 0: producer
// Order      before the wait for the previous kernel: the producer fills the ring, consumers
//            request the scales of the first tile
// Split      ranks of a cluster have equal shares of K; exchange.cuh adds them in rank order. Bits
//            of a token depend neither on the others nor on how many there are
// Barriers   full[s]       1 + bytes | producer           | consumers
//            empty[s]      128       | consumers          | producer
//            x_full        1 + bytes | all ranks          | consumers, with a boundary
//            exchanged[b]  1 + bytes | all ranks          | consumers
//            freed[b]      ranks     | all ranks          | consumers
//            named 1       128       | consumers          | consumers
// Smem       ring of 32 to 64 KB, activations of this rank (up to 2 KB a token)

#pragma once

#include "dsv4/ops/gemm/sm90/small_m/consumer.cuh"
#include "dsv4/ops/gemm/sm90/small_m/producer.cuh"
#include "dsv4/ops/gemm/x/convert.cuh"

namespace dsv4::gemm {

// The work of one CTA. `epilogue(consumer, tile, first_token, tokens)` runs after every
// Epilogue::kTiles tiles, with the last of them.
template <class C, class P, class Prologue, class Epilogue>
__device__ void multiply_share(const P& params, int cluster, int rank, const Prologue& prologue,
                               const Epilogue& epilogue) {
  static_assert(Epilogue::kTiles <= kExchangeBuffers);
  const Memory<C> memory(params.split);
  const Share share(params, cluster, rank);
  const int first_token = static_cast<int>(blockIdx.y) * C::kTokens;
  const int tokens = min(C::kTokens, params.tokens - first_token);
  const int thread = static_cast<int>(threadIdx.x);
  Producer<C, P> producer(params, memory, share);
  Consumer<C, P> consumer(params, memory, share, tokens);
  if (thread < kConsumers) consumer.request_scales();
  if (thread == kConsumers) {
    memory.init_barriers(params.split);
    producer.fill(prologue.copies());
  }
  __syncthreads();
  if (params.split.rank_bits > 0) ptx::cluster_arrive_relaxed(), ptx::cluster_wait();
  // The shuffle shows the compiler that a warp has one role.
  if (__shfl_sync(~0u, thread / kWarp, 0) >= kConsumers / kWarp) {
    ptx::griddepcontrol_wait();
    if (thread > kConsumers) return;
    if (prologue.copies()) producer.copy_x(first_token);
    return producer.stream();
  }
  consumer.prepare_ring();
  prologue(memory, share, first_token, tokens, thread);
  const auto finish = [&](int index) {
    consumer.receive();
    if ((index - share.first_tile) % Epilogue::kTiles != Epilogue::kTiles - 1) return;
    epilogue(consumer, locate_tile(params, share, index), first_token, tokens);
    for (int back = Epilogue::kTiles - 1; back >= 0; --back)
      if (index - back + kExchangeBuffers < share.end_tile) consumer.free_exchange(back);
  };
  for (int i = share.first_tile; i <= share.end_tile; ++i) {
    if (i < share.end_tile) consumer.multiply(locate_tile(params, share, i));
    if (i > share.first_tile) finish(i - 1);
    if (i < share.end_tile) consumer.send();
  }
}

template <class C, class P, class Epilogue>
__global__ void __launch_bounds__(kThreads, C::kCtasOfSm)
    small_m_kernel(const __grid_constant__ P params) {
#if __CUDA_ARCH_FEAT_SM90_ALL
  ptx::griddepcontrol_launch_dependents();
  const int cta = static_cast<int>(blockIdx.x), bits = params.split.rank_bits;
  multiply_share<C>(params, cta >> bits, cta & ((1 << bits) - 1), LoadX<C, P>{params},
                    Epilogue{params});
#else
  __trap();  // compiled for another architecture; reject() refuses those
#endif
}

}  // namespace dsv4::gemm
