// The activations of query_kernel.cuh: latents are normalized and quantized (Q8) by every CTA, into
// the swizzled layout that wgmma reads. Half a warp has a group of 128 columns of a token, a lane 8
// of them. Sums of squares are added over the lanes by a butterfly, then over the groups of a token
// in ascending order.

#pragma once

#include "dsv4/device/pack.cuh"
#include "dsv4/device/ptx/named_barrier.cuh"
#include "dsv4/ops/attention_in/sm90_few/query_params.cuh"
#include "dsv4/ops/few_gemm/quantize_x.cuh"

namespace dsv4::attention_in_kernel::query {

inline constexpr int kConsumerBarrier = 1;  // named barrier of all consumers
inline constexpr int kLaneColumns = 8, kGroupLanes = kSlabColumns / kLaneColumns;
inline constexpr int kGroupsAtOnce = kConsumers / kGroupLanes;
inline constexpr int kLaneGroups = kLatentGroups / kGroupsAtOnce;

__device__ inline void sync_consumers() {
  ptx::barrier_sync(kConsumerBarrier, kConsumers);
}

// Some whole tokens, at most kLatentGroups groups.
template <int kTokens>
class LatentBatch {
 public:
  __device__ LatentBatch(const Params& p, const Memory<kTokens>& memory, int first_token,
                         int tokens, int thread)
      : p_(p),
        memory_(memory),
        first_(first_token),
        groups_(tokens * p.slabs),
        own_(thread / kGroupLanes),
        lane_(thread % kGroupLanes) {}

  // The sums of squares of all groups, in shared memory.
  __device__ void load() {
#pragma unroll
    for (int b = 0; b < kLaneGroups; ++b) {
      if (b * kGroupsAtOnce >= groups_) break;
      const int token = first_ + group(b) / p_.slabs, column = column_of(b);
      values_[b] = *reinterpret_cast<const Values*>(
          p_.latent + int64_t{token} * p_.slabs * kSlabColumns + column);
      norms_[b] = *reinterpret_cast<const Values*>(p_.norm + column);
    }
#pragma unroll
    for (int b = 0; b < kLaneGroups; ++b) {
      if (b * kGroupsAtOnce >= groups_) break;
      float sum = 0;
#pragma unroll
      for (const bf16 value : values_[b].value)
        sum = __fmaf_rn(to_float(value), to_float(value), sum);
#pragma unroll
      for (int step = kGroupLanes / 2; step > 0; step /= 2) sum += __shfl_xor_sync(~0u, sum, step);
      if (lane_ == 0 && exists(b)) memory_.squares()[group(b)] = sum;
    }
  }

  // After a barrier: codes and scales.
  __device__ void quantize() {
#pragma unroll
    for (int b = 0; b < kLaneGroups; ++b) {
      if (b * kGroupsAtOnce >= groups_) break;
      const int in_batch = group(b) / p_.slabs, slab = group(b) - in_batch * p_.slabs;
      const float* squares = memory_.squares() + in_batch * p_.slabs;
      float sum = 0;
      for (int i = 0; i < p_.slabs; ++i) sum += squares[i];
      const float root =
          1.f / sqrtf(sum / static_cast<float>(p_.slabs * kSlabColumns) + p_.norm_eps);
      float v[kLaneColumns], largest = 0;
#pragma unroll
      for (int i = 0; i < kLaneColumns; ++i) {
        v[i] = to_float(
            from_float<bf16>(to_float(values_[b].value[i]) * root * to_float(norms_[b].value[i])));
        largest = fmaxf(largest, fabsf(v[i]));
      }
#pragma unroll
      for (int step = kGroupLanes / 2; step > 0; step /= 2)
        largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, step));
      const float inverse = few_gemm::ToCodes::inverse(largest);
#pragma unroll
      for (float& value : v) value *= inverse;
      if (!exists(b)) continue;
      const int token = first_ + in_batch;
      few_gemm::ToCodes::store<void>(memory_.x(slab), token, lane_, v);
      if (lane_ == 0) memory_.x_scale()[slab * kTokens + token] = few_gemm::ToCodes::scale(largest);
    }
  }

 private:
  using Values = Pack<bf16, kLaneColumns>;

  // All lanes of a warp take part in its shuffles; a group past the end repeats the last.
  __device__ int group(int b) const {
    return min(own_ + b * kGroupsAtOnce, groups_ - 1);
  }
  __device__ bool exists(int b) const {
    return own_ + b * kGroupsAtOnce < groups_;
  }
  __device__ int column_of(int b) const {
    return group(b) % p_.slabs * kSlabColumns + lane_ * kLaneColumns;
  }

  const Params& p_;
  const Memory<kTokens>& memory_;
  const int first_, groups_, own_, lane_;
  Values values_[kLaneGroups], norms_[kLaneGroups];
};

// All consumers, after the wait for the previous kernel. Ends with a barrier.
template <int kTokens>
__device__ void normalize_latents(const Params& p, const Memory<kTokens>& memory, int thread) {
  const int batch = kLatentGroups / p.slabs;
  for (int first = 0; first < p.tokens; first += batch) {
    LatentBatch<kTokens> tokens(p, memory, first, min(batch, p.tokens - first), thread);
    tokens.load();
    sync_consumers();
    tokens.quantize();
    ptx::fence_proxy_async();
    sync_consumers();
  }
}

}  // namespace dsv4::attention_in_kernel::query
