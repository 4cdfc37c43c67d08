// Online softmax of a consumer thread's two rows (heads): g and g + 8 of its warp's 16. Everything
// kept over key tiles is relative to row_max, the largest logit so far; exponentials are of base 2.

#pragma once

#include "dsv4/device/ptx/convert.cuh"
#include "dsv4/device/ptx/packed.cuh"
#include "dsv4/device/sm90/online_softmax.cuh"
#include "dsv4/ops/model/sparse_mla/sm90_bf16/config.cuh"

namespace dsv4::sparse_mla_kernel::sm90_bf16 {

using Scores = float[32];                           // S: [2 rows, 64 keys], fragments of wgmma
using Probabilities = uint32_t[kTileKeys / 16][4];  // P as the A operand, bf16

// S of invalid keys becomes -inf. valid: a bit per key.
__device__ inline void mask(uint64_t valid, int lane, Scores& s) {
  if (valid == ~uint64_t{0}) return;
  const uint64_t mine = valid >> (2 * (lane % 4));
#pragma unroll
  for (int i = 0; i < 32; ++i) {
    if ((mine >> (8 * (i / 4) + i % 2) & 1) == 0) s[i] = -INFINITY;
  }
}

struct Softmax {
  float scale;        // of S, to powers of 2
  float row_max[2];   // of S
  float row_sum[2];   // of this thread's P, in the key tiles of its warpgroup,
  float peer_sum[2];  // and in those of the other

  __device__ void reset() {
    for (int r = 0; r < 2; ++r) {
      row_max[r] = -INFINITY;
      row_sum[r] = peer_sum[r] = 0.f;
    }
  }

  // The largest S so far, over the four lanes of a row.
  __device__ void find_max(const Scores& s, float (&now)[2]) const {
    float top[2][4];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float* four = s + 8 * i + 2 * r;
        top[r][i] = fmaxf(fmaxf(four[0], four[1]), fmaxf(four[4], four[5]));
      }
      now[r] = fmaxf(fmaxf(fmaxf(top[r][0], top[r][1]), fmaxf(top[r][2], top[r][3])), row_max[r]);
    }
#pragma unroll
    for (int step = 1; step <= 2; ++step) {
#pragma unroll
      for (int r = 0; r < 2; ++r) now[r] = fmaxf(now[r], __shfl_xor_sync(~0u, now[r], step));
    }
  }

  // The row max becomes `now`; returns the factors for O.
  __device__ float2 update_max(const float (&now)[2]) {
    float rescale[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      rescale[r] = ptx::ex2_approx_ftz((row_max[r] - sm90::finite_max(now[r])) * scale);
      row_max[r] = now[r];
      row_sum[r] *= rescale[r];
      peer_sum[r] *= rescale[r];
    }
    return {rescale[0], rescale[1]};
  }

  // S -> P, rounded to bf16 for PV; the row sums add it unrounded.
  __device__ void exponentiate(const Scores& s, Probabilities& p) {
    const float base[2] = {sm90::finite_max(row_max[0]) * scale,
                           sm90::finite_max(row_max[1]) * scale};
    float even[2] = {0.f, 0.f}, odd[2] = {0.f, 0.f};
#pragma unroll
    for (int n = 0; n < 8; ++n) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const float a = ptx::ex2_approx_ftz(fmaf(s[4 * n + 2 * r], scale, -base[r]));
        const float b = ptx::ex2_approx_ftz(fmaf(s[4 * n + 2 * r + 1], scale, -base[r]));
        even[r] += a;
        odd[r] += b;
        p[n / 2][n % 2 * 2 + r] = ptx::pack_bf16x2(a, b);
      }
    }
    for (int r = 0; r < 2; ++r) row_sum[r] += even[r] + odd[r];
  }
};

}  // namespace dsv4::sparse_mla_kernel::sm90_bf16
