// Sums over the ranks of a cluster. Tokens belong to ranks by token pairs (token pair p to rank
// p % ranks); every rank sends its partial sums of a tile to the owners, which add them in rank
// order. So the owner of a token has all rows of it.
//
// A tile is finished after the products of the next one, so that its sums have arrived by then. Two
// buffers: a rank sends tile i + 2 when all ranks have read tile i (freed).

#pragma once

#include "dsv4/device/ptx/cluster.cuh"
#include "dsv4/device/ptx/named_barrier.cuh"
#include "dsv4/ops/gemm/sm90/small_m/config.cuh"

namespace dsv4::gemm {

// acc: [64, kTokens], at least [64, 8], as wgmma leaves it. `use` counts the tiles of this CTA. All
// consumers.
template <class C>
__device__ void send_sums(const Memory<C>& memory, const Split& split, const Share& share,
                          const float (&acc)[C::kSums], int token_pairs, int use, int thread) {
  const int buffer = use % kExchangeBuffers, ranks = split.ranks();
  float2* to = memory.exchange(buffer);
  const int g = thread % kWarp / 4, j = thread % 4, row = thread / kWarp * 16 + g;
  const int own_token_pairs = Layout::token_pairs_of_rank(C::kTokens, split.rank_bits);
  ptx::Mbarrier& exchanged = memory.exchanged(buffer);
  if (ranks > 1 && use >= kExchangeBuffers)
    memory.freed(buffer).wait_acquire_cluster((use / kExchangeBuffers - 1) % 2);
  if (ranks > 1 && thread == 0) {
    const int mine = Layout::token_pairs_of_rank(2 * (token_pairs - share.rank), split.rank_bits);
    exchanged.expect_tx(ranks * mine * kTileRows * sizeof(float2));
    exchanged.arrive();
  }
#pragma unroll
  for (int n = 0; n < C::kSums / 4; ++n) {
    const int token_pair = 4 * n + j, owner = token_pair & (ranks - 1);
    if (token_pair >= token_pairs) continue;
    float2* rows =
        to + (share.rank * own_token_pairs + (token_pair >> split.rank_bits)) * kTileRows + row;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float2 value{acc[4 * n + 2 * half], acc[4 * n + 2 * half + 1]};
      if (ranks == 1) {
        rows[8 * half] = value;
      } else {
        ptx::st_async(reinterpret_cast<uint2*>(rows + 8 * half), owner,
                      {__float_as_uint(value.x), __float_as_uint(value.y)}, exchanged);
      }
    }
  }
}

// After it, exchange(use % 2) holds the partial sums of all ranks.
template <class C>
__device__ void wait_for_sums(const Memory<C>& memory, const Split& split, int use) {
  if (split.rank_bits == 0) {
    ptx::barrier_sync(kConsumerBarrier, kConsumers);
  } else {
    memory.exchanged(use % kExchangeBuffers).wait_acquire_cluster(use / kExchangeBuffers % 2);
  }
}

// All consumers have read the buffer of `use`, and another use follows.
template <class C>
__device__ void free_exchange(const Memory<C>& memory, const Split& split, int use, int thread) {
  ptx::barrier_sync(kConsumerBarrier, kConsumers);
  if (split.rank_bits > 0 && thread < split.ranks())
    memory.freed(use % kExchangeBuffers).arrive_relaxed_cluster(thread);
}

// The sum of row `row` of the token pair `own` of this rank.
template <class C>
__device__ float2 add_ranks(const Memory<C>& memory, const Split& split, int use, int own,
                            int row) {
  const int own_token_pairs = Layout::token_pairs_of_rank(C::kTokens, split.rank_bits);
  const float2* from = memory.exchange(use % kExchangeBuffers) + own * kTileRows + row;
  float2 sum = *from;
  for (int rank = 1; rank < split.ranks(); ++rank) {
    const float2 part = from[rank * own_token_pairs * kTileRows];
    sum.x += part.x, sum.y += part.y;
  }
  return sum;
}

}  // namespace dsv4::gemm
