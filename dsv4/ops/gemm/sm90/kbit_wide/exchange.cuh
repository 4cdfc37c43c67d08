// After the main loop: pair q of tokens (2 q, 2 q + 1) of the tile belongs to rank q % ranks. Every
// CTA of the cluster sends its sums of a pair to the owner, which adds them in order of the ranks.
// They lie where the table and the rings were:
//
//   float2 [rank of the sender][pair / ranks][row of the tile]
//
// Sums of the CTA's own pairs are ordinary stores, the others asynchronous ones.

#pragma once

#include "dsv4/device/ptx/cluster.cuh"
#include "dsv4/device/ptx/named_barrier.cuh"
#include "dsv4/ops/gemm/cuda/store_at.cuh"
#include "dsv4/ops/gemm/sm90/kbit_wide/consumer.cuh"

namespace dsv4::gemm::kbit_wide {

template <class C>
struct Exchange {
  static constexpr int kPairs = C::kColumns / 2;
  // Two pairs of a store use other banks than the next two.
  static constexpr int kPitch = C::kRows * 8 + 64;
  static_assert(kPairs * kPitch <= static_cast<int>(offsetof(Shared<C>, full)));

  // Pairs that a rank owns, and the bytes that others send it.
  static __device__ int owned(const Share& share) { return kPairs >> share.rank_bits; }
  static __device__ uint32_t bytes(const Share& share) {
    return static_cast<uint32_t>((share.ranks - 1) * owned(share) * C::kRows * 8);
  }
  static __device__ float2* at(Shared<C>& shared, const Share& share, int sender, int index) {
    return reinterpret_cast<float2*>(reinterpret_cast<unsigned char*>(&shared) +
                                     (sender * owned(share) + index) * kPitch);
  }
};

template <class C>
__device__ void send(const Share& share, const Sums<C>& sums, Shared<C>& shared) {
  const int thread = static_cast<int>(threadIdx.x), row = row_of(thread);
#pragma unroll
  for (int n = 0; n < C::kColumns / 8; ++n) {
    const int pair = 4 * n + thread % 4, owner = pair & (share.ranks - 1);
    float2* const to = Exchange<C>::at(shared, share, share.rank, pair >> share.rank_bits);
    if (owner == share.rank) {
#pragma unroll
      for (int r = 0; r < 2; ++r)
        to[row + r * 8] = float2{sums[4 * n + 2 * r], sums[4 * n + 2 * r + 1]};
    } else {
#pragma unroll
      for (int r = 0; r < 2; ++r)
        ptx::st_async(
            reinterpret_cast<uint2*>(to + row + r * 8), static_cast<uint32_t>(owner),
            uint2{__float_as_uint(sums[4 * n + 2 * r]), __float_as_uint(sums[4 * n + 2 * r + 1])},
            shared.exchanged);
    }
  }
}

// By all consumers.
template <class C>
__device__ void store(const Params& p, const Share& share, Shared<C>& shared) {
  using E = Exchange<C>;
  const float factor = shared.factor;
  constexpr int kTogether = C::kConsumers / C::kRows;  // pairs
  const int thread = static_cast<int>(threadIdx.x);
  shared.exchanged.wait_acquire_cluster(0);
  ptx::barrier_sync(1, C::kConsumers);  // the other warps' ordinary stores
  const int row = thread % C::kRows, n = share.first_row + row;
  if (n >= p.n) return;
  for (int i = thread / C::kRows; i < E::owned(share); i += kTogether) {
    const int token = share.first_token + 2 * (i * share.ranks + share.rank);
    if (token >= p.tokens) return;
    float2 sum = E::at(shared, share, 0, i)[row];
    for (int s = 1; s < share.ranks; ++s) {
      const float2 more = E::at(shared, share, s, i)[row];
      sum.x += more.x, sum.y += more.y;
    }
    const int64_t to = token * p.out_stride + n;
    cuda::store_at(p.out, p.out_dtype, to, sum.x * factor);
    if (token + 1 < p.tokens) cuda::store_at(p.out, p.out_dtype, to + p.out_stride, sum.y * factor);
  }
}

}  // namespace dsv4::gemm::kbit_wide
