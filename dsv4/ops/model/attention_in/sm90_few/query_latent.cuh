// The activations of query_kernel.cuh: latents are normalized and quantized (Q8). Half a warp has a
// group of 128 columns of a token, a lane 8 of them. Sums of squares are added over the lanes by a
// butterfly, then over the groups of a token in ascending order.
//
// With few tokens every CTA does so for all latents, into the swizzled layout that wgmma reads,
// which takes about 1 us a token of V4-Flash. With more, normalize_kernel does it once, and every
// CTA copies the codes, and cos and sin with them.

#pragma once

#include "dsv4/base/bits.h"
#include "dsv4/device/pack.cuh"
#include "dsv4/device/ptx/griddep.cuh"
#include "dsv4/device/ptx/named_barrier.cuh"
#include "dsv4/ops/gemm/x/convert.cuh"
#include "dsv4/ops/model/attention_in/sm90_few/query_params.cuh"
#include "dsv4/ops/parts/rope/rotation.cuh"

namespace dsv4::attention_in_kernel::query {

inline constexpr int kConsumerBarrier = 1;  // named barrier of all consumers
inline constexpr int kLaneColumns = 8, kGroupLanes = kGroup / kLaneColumns;
inline constexpr int kGroupsAtOnce = kConsumers / kGroupLanes;

__device__ inline void sync_consumers() {
  ptx::barrier_sync(kConsumerBarrier, kConsumers);
}

// The columns of a lane. All lanes of a warp call these functions together.
using Columns = gemm::Run;
static_assert(kLaneColumns == gemm::kRun);

// Returns the sum over the group.
__device__ inline float sum_of_squares(const Columns& x) {
  float v[kLaneColumns], sum = 0;
  x.widen(v);
#pragma unroll
  for (const float value : v) sum = __fmaf_rn(value, value, sum);
#pragma unroll
  for (int step = kGroupLanes / 2; step > 0; step /= 2) sum += __shfl_xor_sync(~0u, sum, step);
  return sum;
}
// squares: of the groups of a token.
__device__ inline float latent_root(const float* squares, int groups, float eps) {
  float sum = 0;
  for (int i = 0; i < groups; ++i) sum += squares[i];
  return 1.f / sqrtf(sum / static_cast<float>(groups * kGroup) + eps);
}
// v: the normalized values, divided by the group's scale. Returns the largest magnitude of the
// group before that.
__device__ inline float normalize_columns(const Columns& x, const Columns& norm, float root,
                                          float (&v)[kLaneColumns]) {
  float weights[kLaneColumns], largest = 0;
  x.widen(v), norm.widen(weights);
#pragma unroll
  for (int i = 0; i < kLaneColumns; ++i) {
    v[i] = to_float(from_float<bf16>(v[i] * root * weights[i]));
    largest = fmaxf(largest, fabsf(v[i]));
  }
#pragma unroll
  for (int step = kGroupLanes / 2; step > 0; step /= 2)
    largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, step));
  const float inverse = gemm::ToCodes::inverse(largest);
#pragma unroll
  for (float& value : v) value *= inverse;
  return largest;
}

// Some whole tokens, at most C::kLatentGroups groups; the first ones to begin with.
template <class C>
class LatentBatch {
 public:
  __device__ LatentBatch(const Params& p, const Memory<C>& memory, int thread)
      : p_(p),
        memory_(memory),
        own_(thread / kGroupLanes),
        lane_(thread % kGroupLanes),
        groups_(num_tokens() * p.groups) {}

  // What does not depend on the latents: where the lane's groups are, and the norm's weights, which
  // no kernel writes. The caller does so for the first batch before the wait.
  __device__ void prepare() {
#pragma unroll
    for (int b = 0; b < kLaneGroups; ++b) {
      if (b * kGroupsAtOnce >= groups_) break;
      tokens_[b] = group(b) / p_.groups;
      groups_of_[b] = group(b) - tokens_[b] * p_.groups;
      norms_[b] = Columns::load(p_.norm + groups_of_[b] * kGroup + lane_ * kLaneColumns);
    }
  }

  // The sums of squares of all groups, in shared memory.
  __device__ void load() {
    const bf16* const from =
        p_.latent + int64_t{first_} * p_.groups * kGroup + lane_ * kLaneColumns;
#pragma unroll
    for (int b = 0; b < kLaneGroups; ++b) {
      if (b * kGroupsAtOnce >= groups_) break;
      values_[b] = Columns::load(from + group(b) * kGroup);
    }
#pragma unroll
    for (int b = 0; b < kLaneGroups; ++b) {
      if (b * kGroupsAtOnce >= groups_) break;
      const float sum = sum_of_squares(values_[b]);
      if (lane_ == 0 && exists(b)) memory_.squares()[group(b)] = sum;
    }
  }

  // After a barrier: codes and scales.
  __device__ void quantize() {
#pragma unroll
    for (int b = 0; b < kLaneGroups; ++b) {
      if (b * kGroupsAtOnce >= groups_) break;
      const float root =
          latent_root(memory_.squares() + tokens_[b] * p_.groups, p_.groups, p_.norm_eps);
      float v[kLaneColumns];
      const float largest = normalize_columns(values_[b], norms_[b], root, v);
      if (!exists(b)) continue;
      const int token = first_ + tokens_[b];
      using To = std::conditional_t<C::kBits == 0, gemm::ToCodes, gemm::ToBlocks>;
      To::template store<C>(memory_.x(groups_of_[b]), token, lane_, v);
      if (lane_ == 0) memory_.x_scale()[groups_of_[b] * C::kTokens + token] = To::scale(largest);
    }
  }

  // Becomes the next tokens, if there are more.
  __device__ bool advance() {
    first_ += C::kLatentGroups / p_.groups;
    if (first_ >= p_.tokens) return false;
    groups_ = num_tokens() * p_.groups;
    prepare();
    return true;
  }

 private:
  static constexpr int kLaneGroups = C::kLatentGroups / kGroupsAtOnce;

  __device__ int num_tokens() const {
    return min(C::kLatentGroups / p_.groups, p_.tokens - first_);
  }
  // All lanes of a warp take part in its shuffles; a group past the end repeats the last.
  __device__ int group(int b) const {
    return min(own_ + b * kGroupsAtOnce, groups_ - 1);
  }
  __device__ bool exists(int b) const {
    return own_ + b * kGroupsAtOnce < groups_;
  }

  const Params& p_;
  const Memory<C>& memory_;
  const int own_, lane_;
  int first_ = 0, groups_;
  int tokens_[kLaneGroups], groups_of_[kLaneGroups];  // the lane's: token of the batch, group
  Columns values_[kLaneGroups], norms_[kLaneGroups];
};

// All tokens. All consumers, after the wait for the previous kernel. Ends with a barrier.
template <class C>
__device__ void normalize_latents(LatentBatch<C>& batch) {
  do {
    batch.load();
    sync_consumers();
    batch.quantize();
    ptx::fence_proxy_async();
    sync_consumers();
  } while (batch.advance());
}

// Loads stored codes of all latents, which the producer copies where weights are FP8.
template <class C>
__device__ void load_latents(const Params& p, const Memory<C>& memory, int thread) {
  for (int i = thread; i < p.tokens * p.groups; i += kConsumers) {
    const int token = i / p.groups, group = i - token * p.groups;
    memory.x_scale()[group * C::kTokens + token] = ue8m0_to_f32(p.code_scales[i]);
  }
  if constexpr (C::kBits > 0) {
    gemm::load_blocks<C, kConsumers>(memory.x(0), p.groups, p.code_values, p.groups * kGroup,
                                     p.tokens, thread);
    ptx::fence_proxy_async();
  }
  sync_consumers();
  if constexpr (C::kBits == 0 && !C::kStreamsX) memory.x_full().wait(0);
}

struct NormalizeParams {
  const bf16 *latent, *norm;  // [t, k], [k]
  float eps;
  int groups;               // k / 128
  uint8_t *codes, *scales;  // [t, k] e4m3, [t, k / 128] E8M0
  // [t, kPairs] cos and sin of each token, of positions [t] and freqs [kPairs]; or null
  float2* rotations;
  const int32_t* positions;
  const float* freqs;
};

// The last warp computes rotations.
inline int normalize_threads(int groups) {
  return align_up(groups * kGroupLanes, kWarp) + kWarp;
}
inline NormalizeParams normalize_params(const AttentionInArgs& args, const ConstTensorView& latent,
                                        const StoredLatents& to) {
  return {.latent = latent.as<bf16>(),
          .norm = args.weights.q_norm.as<bf16>(),
          .eps = args.norm_eps,
          .groups = static_cast<int>(latent.dim(1) / kGroup),
          .codes = to.codes.as<uint8_t>(),
          .scales = to.scales.as<uint8_t>(),
          .rotations = to.rotation_pairs(),
          .positions = args.positions.as<int32_t>(),
          .freqs = args.freqs.as<float>()};
}

// A warp.
__device__ inline void store_rotation(const NormalizeParams& p) {
  if (p.rotations == nullptr) return;
  const int pair = static_cast<int>(threadIdx.x) % kWarp;
  ptx::griddepcontrol_wait();
  p.rotations[int64_t{blockIdx.x} * kPairs + pair] =
      rotation_of(static_cast<float>(p.positions[blockIdx.x]), p.freqs[pair], false);
}

// grid: [t], normalize_threads(groups) threads
__global__ void __launch_bounds__(kMaxGroups* kGroupLanes + kWarp)
    normalize_kernel(const NormalizeParams p) {
  ptx::griddepcontrol_launch_dependents();
  __shared__ float squares[kMaxGroups];
  const int normalizing = static_cast<int>(blockDim.x) - kWarp;
  if (static_cast<int>(threadIdx.x) >= normalizing) return store_rotation(p);
  const int own = static_cast<int>(threadIdx.x) / kGroupLanes,
            lane = static_cast<int>(threadIdx.x) % kGroupLanes;
  const int group = min(own, p.groups - 1);  // as in LatentBatch
  const int column = group * kGroup + lane * kLaneColumns;
  const int64_t first = int64_t{blockIdx.x} * p.groups;
  const Columns norm = Columns::load(p.norm + column);
  ptx::griddepcontrol_wait();
  const Columns x = Columns::load(p.latent + first * kGroup + column);
  const float sum = sum_of_squares(x);
  if (lane == 0 && own == group) squares[group] = sum;
  ptx::barrier_sync(kConsumerBarrier, normalizing);
  float v[kLaneColumns];
  const float largest = normalize_columns(x, norm, latent_root(squares, p.groups, p.eps), v);
  if (own != group) return;
  using Codes = gemm::ToCodes::Codes;
  *reinterpret_cast<Codes*>(p.codes + first * kGroup + column) = gemm::ToCodes::codes(v);
  if (lane == 0) p.scales[first + group] = q8_scale(largest);
}

}  // namespace dsv4::attention_in_kernel::query
