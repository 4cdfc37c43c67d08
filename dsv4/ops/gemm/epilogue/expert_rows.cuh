// Rows of routed experts from their sums: hidden values (SwiGLU) after gate and up, y after down.
//
// Lane 4g + t holds rows g (gate) and g + 8 (up) of pairs 2t and 2t + 1.

#pragma once

#include "dsv4/ops/gemm/epilogue/swiglu.cuh"
#include "dsv4/ops/gemm/sm90/experts/work.cuh"

namespace dsv4::gemm::experts {

__device__ inline float rounded(float x) {
  return to_float(from_float<bf16>(x));
}

// What an epilogue lane needs of an entry.
struct EpilogueEntry {
  Entry entry;
  float scale2[3];
  float weight[2];  // of pairs 2t and 2t + 1, gate and up
  int row[2];       // of them in y, down

  template <bool kGateUp>
  __device__ static EpilogueEntry load(const Params& p, const Entry& entry,
                                       const float* pair_weight) {
    EpilogueEntry e{.entry = entry};
    const float* const scale2 = p.scale2 + e.entry.expert * 3;
#pragma unroll
    for (int i = 0; i < 3; ++i) e.scale2[i] = scale2[i] * p.factor;
    const int m = static_cast<int>(threadIdx.x) % 4 * 2;
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      if (m + j >= e.entry.pairs) continue;
      if constexpr (kGateUp) {
        e.weight[j] = pair_weight[e.entry.first_pair + m + j];
      } else {
        e.row[j] = p.out_by_pair ? entry.token[m + j] : e.entry.first_pair + m + j;
      }
    }
    return e;
  }
};

// h = weight * swiglu of gate and up, which are rounded to bf16 first.
__device__ inline void store_hidden(const Params& p, const EpilogueEntry& e, int strip,
                                    const float (&sums)[4]) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int row = strip * 8 + lane / 4;
#pragma unroll
  for (int j = 0; j < 2; ++j) {
    const int m = lane % 4 * 2 + j;
    if (m >= e.entry.pairs || row >= p.rows) continue;
    const float gate = rounded(sums[j] * e.scale2[0]), up = rounded(sums[2 + j] * e.scale2[1]);
    p.out[(e.entry.first_pair + m) * p.out_stride + row] =
        from_float<bf16>(swiglu(gate, up, e.weight[j], p.limit));
  }
}

__device__ inline void store_down(const Params& p, const EpilogueEntry& e, int strip,
                                  const float (&sums)[4]) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int m = lane % 4 * 2 + i % 2, row = strip * kUnitRows + lane / 4 + i / 2 * 8;
    if (m < e.entry.pairs && row < p.rows)
      p.out[e.row[i % 2] * p.out_stride + row] = from_float<bf16>(sums[i] * e.scale2[2]);
  }
}

}  // namespace dsv4::gemm::experts
