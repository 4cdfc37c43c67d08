// The first kernel: X' of a slice of columns, stored in place, and the slice's share of 24 dot
// products with fn and of the sum of squares.
//
// Problem    X'_k = post_k y + sum_j comb[j][k] X_j, rounded to bf16; partial[i] = X' . fn_i over
//            the CTA's 4 x 32 columns, f32, i < 24; partial[24] = X' . X'
// Bound      latency: 12 KB of fn per CTA before the wait, 128 CTAs at d = 4096
// Tiles      32 columns of each stream; kTokens tokens, one warp each, pass X' to all warps in
//            shared memory as f32; then a warp has three rows of fn in registers (12 per lane)
// Order      a lane adds the four streams of its column, then a butterfly over the lanes: the same
//            for any kTokens, so a token's bits do not depend on the batch
// Exchange   of ranks that compute columns of y (HcBoundaryArgs::y_words): the CTAs of a rank's own
//            columns give them to the other ranks, the CTAs of the others' columns wait for them
//            and store nothing of y

#pragma once

#include <bit>

#include "dsv4/device/pack.cuh"
#include "dsv4/device/peer_words.cuh"
#include "dsv4/device/ptx/griddep.cuh"
#include "dsv4/ops/gemm/x/boundary_input.cuh"
#include "dsv4/ops/model/hc_boundary/sm90_few/params.cuh"

namespace dsv4::hc_boundary_kernel::sm90_few {

template <class Y>
__device__ const Y* output_at(const Params& p, int token, int column) {
  return static_cast<const Y*>(p.y) + token * p.y_stride + column;
}

// y, as this rank has it.
template <class Y>
struct OwnOutput {
  __device__ void begin() {}
  __device__ float operator()(const Params& p, int token, int column) const {
    return to_float(*output_at<Y>(p, token, column));
  }
  __device__ void end() {}
};

// y, of which ranks have columns. A CTA's are of one rank.
template <class Y>
struct ExchangedOutput {
  WordExchange exchange;
  int owner;  // of the CTA's columns
  int64_t since = 0;

  __device__ explicit ExchangedOutput(const PeerWords& y)
      : exchange(y), owner(exchange.owner(static_cast<int>(blockIdx.x) * kSlice)) {}

  __device__ static int cta() { return static_cast<int>(blockIdx.y * gridDim.x + blockIdx.x); }
  __device__ void begin() {
    exchange.begin(cta());
    // The time of one CTA that waits counts.
    const int peer = exchange.peers.rank == 0 ? exchange.peers.world - 1 : 0;
    const int waiting = peer == 0 ? 0 : static_cast<int>(gridDim.x * gridDim.y) - 1;
    if (cta() == waiting) since = ptx::global_nanoseconds();
  }
  __device__ float operator()(const Params& p, int token, int column) const {
    constexpr int kColumns = PeerWords::kBytes / sizeof(Y);  // of a word
    const int first = column / kColumns * kColumns;
    const int64_t word = (int64_t{token} * p.d + first) / kColumns;
    uint64_t value;
    if (owner == exchange.peers.rank) {
      value = *reinterpret_cast<const uint64_t*>(output_at<Y>(p, token, first));
      if (column == first) exchange.give(word, value);
    } else {
      value = exchange.take(word, owner);
    }
    const auto values = reinterpret_cast<const Pack<Y, kColumns>&>(value);
    float own = 0;
#pragma unroll
    for (int i = 0; i < kColumns; ++i) own = column == first + i ? to_float(values.value[i]) : own;
    return own;
  }
  __device__ void end() {
    exchange.end(since, cta(), static_cast<int>(gridDim.x * gridDim.y));
  }
};

// X' of one column of a token, as stored.
template <class Output>
__device__ float4 update_column(const Params& p, const Output& output, int token, int column) {
  bf16* const x = p.streams + token * p.token_stride + column;
  float old[kStreams], updated[kStreams];
#pragma unroll
  for (int j = 0; j < kStreams; ++j) old[j] = to_float(x[j * p.stream_stride]);
  if (p.y == nullptr) return {old[0], old[1], old[2], old[3]};
  const float* const post = p.y_post + token * p.y_post_stride;
  const float* const comb = p.y_comb + token * p.y_comb_stride;
  const float own = to_float(from_float<bf16>(output(p, token, column)));
#pragma unroll
  for (int k = 0; k < kStreams; ++k) {
    float sum = post[k] * own;
#pragma unroll
    for (int j = 0; j < kStreams; ++j)
      sum = __fmaf_rn(comb[j * p.y_comb_row_stride + k], old[j], sum);
    const bf16 stored = from_float<bf16>(sum);
    x[k * p.stream_stride] = stored;
    updated[k] = to_float(stored);
  }
  return {updated[0], updated[1], updated[2], updated[3]};
}

__device__ inline float dot(float4 x, const float (&w)[kStreams]) {
  return __fmaf_rn(x.w, w[3], __fmaf_rn(x.z, w[2], __fmaf_rn(x.y, w[1], x.x * w[0])));
}

// The sums of `count` tokens from `first` on, whose X' is in `columns`, with the rows w of fn.
template <int kTokens>
__device__ void add_columns(const Params& p, const float4 (&columns)[kTokens][kSlice],
                            const float (&w)[kWarpMixes][kStreams], int first, int count) {
  const int warp = static_cast<int>(threadIdx.x) / kWarp,
            lane = static_cast<int>(threadIdx.x) % kWarp;
  constexpr int kValues = kTokens * kWarpMixes + 1;
  constexpr int kPadded = static_cast<int>(std::bit_ceil(unsigned{kValues}));
  float sums[kPadded] = {};
#pragma unroll
  for (int i = 0; i < kTokens; ++i) {
    if (i >= count) continue;
    const float4 x = columns[i][lane];
#pragma unroll
    for (int r = 0; r < kWarpMixes; ++r) sums[i * kWarpMixes + r] = dot(x, w[r]);
    if (i == warp) sums[kValues - 1] = dot(x, {x.x, x.y, x.z, x.w});
  }
  const float sum = sum_over_lanes<kPadded>(sums, lane);
  constexpr int kLanes = kWarp / kPadded;
  const int value = lane / kLanes;
  if (lane % kLanes != 0 || value >= kValues) return;
  const bool squares = value == kValues - 1;
  const int token = squares ? warp : value / kWarpMixes;
  const int row = squares ? kMixes : kWarpMixes * warp + value % kWarpMixes;
  if (token < count) p.partial_of(first + token, row)[blockIdx.x] = sum;
}

template <int kTokens, class Output>
__device__ void mix(const Params& p, Output output) {
  ptx::griddepcontrol_launch_dependents();
  __shared__ float4 columns[2][kTokens][kSlice];  // of a run, and of the next one
  const int warp = static_cast<int>(threadIdx.x) / kWarp,
            lane = static_cast<int>(threadIdx.x) % kWarp;
  const int column = static_cast<int>(blockIdx.x) * kSlice + lane;
  float w[kWarpMixes][kStreams];
#pragma unroll
  for (int r = 0; r < kWarpMixes; ++r) {
#pragma unroll
    for (int j = 0; j < kStreams; ++j)
      w[r][j] = p.fn[(kWarpMixes * warp + r) * p.fn_stride + j * p.d + column];
  }
  ptx::griddepcontrol_wait();

  output.begin();
  static_assert(kTokens <= kMixWarps, "a warp for each");
  int buffer = 0;
#pragma unroll 1
  for (int first = static_cast<int>(blockIdx.y) * kTokens; first < p.t;
       first += static_cast<int>(gridDim.y) * kTokens, buffer ^= 1) {
    const int count = min(kTokens, p.t - first);
    if (warp < count) columns[buffer][warp][lane] = update_column(p, output, first + warp, column);
    __syncthreads();  // all have also read the columns before the last run's, whose place is next
    add_columns(p, columns[buffer], w, first, count);
  }
  output.end();
}

// grid: [slices, up to tokens / kTokens]; with fewer a CTA takes several runs of kTokens tokens, up
// to 8.
template <int kTokens, class Y>
__global__ void __launch_bounds__(kMixWarps* kWarp) mix_kernel(const __grid_constant__ Params p) {
  mix<kTokens>(p, OwnOutput<Y>{});
}

// The grid is that of mix_kernel.
template <int kTokens, class Y>
__global__ void __launch_bounds__(kMixWarps* kWarp)
    exchanging_mix_kernel(const __grid_constant__ Params p, const __grid_constant__ PeerWords y) {
  mix<kTokens>(p, ExchangedOutput<Y>(y));
}

}  // namespace dsv4::hc_boundary_kernel::sm90_few
