// The first kernel: X' of all tokens, stored in place, and its products with fn.
//
// Problem    X'_k = post_k y + sum_j comb[j][k] X_j, rounded to bf16; dots[tile, t, i] = X' . fn_i
//            over the tile's 4 x 128 columns, f32, i < 24; squares[tile, t] = X' . X'
// Bound      memory: X is read and written, y is read. 16 warps mix in about 1,300 of the 4,200
//            clocks that 32 tokens take at the speed of a copy, the products take 600. Where ranks
//            share y (ColumnHomes), most of its columns are read from other GPUs
// Tiles      a CTA keeps 128 columns of each stream, with fn as three bf16 terms in shared memory,
//            and walks over its tokens, 32 at a time. All CTAs are resident
// Roles      warps 0 - 15 mix: each thread brings its own 8 columns of every stream by cp.async,
//            two steps ahead, and y in registers, one step ahead. Warps 16 - 19 split fn before
//            the wait, then multiply blocks of 64 tokens: m64n72k16, 72 = 3 terms x 24
// Barriers   loaded[stage][warp]: the warp's cp.async of a step. tile_full, tile_empty: X' of a
//            block of 64 tokens, in one buffer; loads are under way while mixing waits for it
// Order      one chain over the tile's columns in a tensor core, then the terms: the same for any
//            token and any number of tokens. The rows of tokens that do not exist are not stored

#pragma once

#include "dsv4/device/pack.cuh"
#include "dsv4/device/ptx/cp_async.cuh"
#include "dsv4/device/ptx/fence.cuh"
#include "dsv4/device/ptx/griddep.cuh"
#include "dsv4/device/ptx/named_barrier.cuh"
#include "dsv4/device/ptx/smem_desc.cuh"
#include "dsv4/device/ptx/wgmma.cuh"
#include "dsv4/ops/model/hc_boundary/sm90_many/config.cuh"

namespace dsv4::hc_boundary_kernel::sm90_many {

inline constexpr int kDotBarrier = 1;  // named barrier of the warps that multiply

// What a CTA works on.
struct Share {
  int tile, column;  // of the tile's first column of a stream
  int first, blocks;

  __device__ explicit Share(const ManyParams& p)
      : tile(static_cast<int>(blockIdx.x)),
        column(tile * kColumns),
        first(static_cast<int>(blockIdx.y) * p.blocks * kBlock),
        blocks(min(p.blocks, (p.call.t - first + kBlock - 1) / kBlock)) {}
};

// Eight columns of X' from those of X (in) and of y.
template <class Y>
__device__ void mix_run(const Run (&in)[kStreams], const float4 (&factors)[kFactors],
                        const Pack<Y, kRun>& y, Run (&out)[kStreams]) {
  float x[kStreams][kRun], own[kRun];
#pragma unroll
  for (int j = 0; j < kStreams; ++j) in[j].widen(x[j]);
#pragma unroll
  for (int i = 0; i < kRun; ++i) own[i] = to_float(from_float<bf16>(to_float(y.value[i])));
  const auto factor = [&](int row, int k) {
    const float4 f = factors[row];
    return k == 0 ? f.x : k == 1 ? f.y : k == 2 ? f.z : f.w;
  };
#pragma unroll
  for (int k = 0; k < kStreams; ++k) {
    float sum[kRun];
#pragma unroll
    for (int i = 0; i < kRun; ++i) {
      sum[i] = factor(kStreams, k) * own[i];
#pragma unroll
      for (int j = 0; j < kStreams; ++j) sum[i] = __fmaf_rn(factor(j, k), x[j][i], sum[i]);
    }
    out[k] = Run::rounded(sum);
  }
}

// A thread that mixes: 8 columns of one token of each step.
template <class Y>
class Mixer {
 public:
  __device__ Mixer(const ManyParams& p, PostMixShared& s, const Share& share)
      : p_(p),
        s_(s),
        share_(share),
        thread_(static_cast<int>(threadIdx.x)),
        column_(share.column + thread_ % kRuns * kRun),
        y_at_(home_of_y(p, share.column) + column_) {}

  __device__ void run() {
    const int steps = share_.blocks * (kBlock / kStep);
    prefetch(0);
    if (steps > 1) prefetch(1);
    y_ = load_y(0);
#pragma unroll 1
    for (int step = 0; step < steps; ++step) {
      Run in[kStreams];
      float4 factors[kFactors];
      take(step, in, factors);
      const Pack<Y, kRun> y = y_;
      if (step + kStages < steps) prefetch(step + kStages);
      if (step + 1 < steps) y_ = load_y(step + 1);
      if (step % 2 == 0) s_.tile_empty.wait((step / 2 + 1) % 2);
      mix(step, in, factors, y);
      if (step % 2 == 1) {
        ptx::fence_proxy_async();
        __syncwarp();
        if (thread_ % kWarp == 0) s_.tile_full.arrive();
      }
    }
  }

 private:
  // y where the rank has it that computed these columns.
  __device__ static const Y* home_of_y(const ManyParams& p, int column) {
    int r = 0;
    while (r + 1 < p.y_homes.count && column >= p.y_homes.end[r]) ++r;
    return reinterpret_cast<const Y*>(static_cast<const std::byte*>(p.call.y) +
                                      p.y_homes.distance[r]);
  }

  __device__ int token(int step) const {
    return share_.first + step * kStep + thread_ / kRuns;
  }
  __device__ bool is_token(int step) const {
    return token(step) < p_.call.t;
  }
  __device__ bf16* stream(int step, int j) const {
    return p_.call.streams + token(step) * p_.call.token_stride + j * p_.call.stream_stride +
           column_;
  }
  __device__ ptx::Mbarrier& loaded(int step) const {
    return s_.loaded[step % kStages][thread_ / kWarp];
  }

  __device__ void prefetch(int step) const {
    const int stage = step % kStages, row = thread_ % kRuns;
    if (is_token(step)) {
#pragma unroll
      for (int j = 0; j < kStreams; ++j)
        ptx::cp_async<kChunk>(&s_.x[stage][j][thread_], stream(step, j));
      const Params& call = p_.call;
      if (call.y != nullptr && row < kFactors) {
        const float* const from = row < kStreams ? call.y_comb + token(step) * call.y_comb_stride +
                                                       row * call.y_comb_row_stride
                                                 : call.y_post + token(step) * call.y_post_stride;
        ptx::cp_async<kChunk>(&s_.factors[stage][thread_ / kRuns][row], from);
      }
    }
    loaded(step).arrive_cp_async_noinc();
  }

  __device__ Pack<Y, kRun> load_y(int step) const {
    if (p_.call.y == nullptr || !is_token(step)) return {};
    return *reinterpret_cast<const Pack<Y, kRun>*>(y_at_ + token(step) * p_.call.y_stride);
  }

  // What prefetch() brought; afterwards its place is free.
  __device__ void take(int step, Run (&in)[kStreams], float4 (&factors)[kFactors]) const {
    const int stage = step % kStages;
    loaded(step).wait(step / kStages % 2);
#pragma unroll
    for (int j = 0; j < kStreams; ++j)
      in[j] = Run::load(reinterpret_cast<const bf16*>(&s_.x[stage][j][thread_]));
#pragma unroll
    for (int i = 0; i < kFactors; ++i) factors[i] = s_.factors[stage][thread_ / kRuns][i];
    __syncwarp();
  }

  __device__ void mix(int step, const Run (&in)[kStreams], const float4 (&factors)[kFactors],
                      const Pack<Y, kRun>& y) const {
    const bool update = p_.call.y != nullptr;
    Run out[kStreams];
    if (update) {
      mix_run(in, factors, y, out);
    } else {
#pragma unroll
      for (int k = 0; k < kStreams; ++k) out[k] = in[k];
    }
    const int row = step % 2 * kStep + thread_ / kRuns, chunk = thread_ % kRuns;
    float square = 0;
#pragma unroll
    for (int k = 0; k < kStreams; ++k) {
      out[k].store(reinterpret_cast<bf16*>(s_.tile[2 * k + chunk / 8] + swizzled(row, chunk % 8)));
      if (update && is_token(step)) out[k].store(stream(step, k));
      float v[kRun];
      out[k].widen(v);
#pragma unroll
      for (const float value : v) square = __fmaf_rn(value, value, square);
    }
    square = gemm::sum_of_group(square);
    if (chunk == 0 && is_token(step))
      p_.squares[int64_t{share_.tile} * p_.call.t + token(step)] = square;
  }

  const ManyParams& p_;
  PostMixShared& s_;
  const Share& share_;
  const int thread_, column_;
  const Y* const y_at_;  // the columns of the first token
  Pack<Y, kRun> y_;
};

// fn of the tile as bf16 terms, of which each is what the ones before it leave.
__device__ inline void split_fn(const ManyParams& p, PostMixShared& s, const Share& share,
                                int thread) {
  constexpr int kChunks = kStreams * kColumns / kRun;  // of a mix
  for (int i = thread; i < kMixes * kChunks; i += kDotThreads) {
    const int mix = i / kChunks, chunk = i % kChunks, column = chunk % kRuns * kRun;
    float rest[kRun];
    load<kRun>(
        p.call.fn + mix * p.call.fn_stride + chunk / kRuns * p.call.d + share.column + column,
        rest);
#pragma unroll
    for (int term = 0; term < kTerms; ++term) {
      const Run run = Run::rounded(rest);
      run.store(
          reinterpret_cast<bf16*>(s.fn[chunk / 8] + swizzled(term * kMixes + mix, chunk % 8)));
      float v[kRun];
      run.widen(v);
#pragma unroll
      for (int j = 0; j < kRun; ++j) rest[j] -= v[j];
    }
  }
}

// Lane 4 g + j of warp w has tokens 16 w + g and 8 later, and mixes 8 n + 2 j and 1 later.
__device__ inline void store_dots(const ManyParams& p, const Share& share, int block,
                                  const float (&sums)[kProducts / 2], int thread) {
  const int lane = thread % kWarp;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int token = share.first + block * kBlock + thread / kWarp * 16 + lane / 4 + 8 * half;
    if (token >= p.call.t) continue;
    float* const to = p.dots + (int64_t{share.tile} * p.call.t + token) * kMixes + lane % 4 * 2;
#pragma unroll
    for (int n = 0; n < kMixes / 8; ++n) {
      float dot[2];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        constexpr int kTerm = kMixes / 2;  // registers of a term
        const int at = 4 * n + 2 * half + i;
        dot[i] = sums[at] + (sums[at + kTerm] + sums[at + 2 * kTerm]);
      }
      *reinterpret_cast<float2*>(to + 8 * n) = {dot[0], dot[1]};
    }
  }
}

__device__ inline void multiply(const ManyParams& p, PostMixShared& s, const Share& share,
                                int thread) {
  const uint64_t x = ptx::make_smem_desc_128B(ptx::smem_address(s.tile));
  const uint64_t fn = ptx::make_smem_desc_128B(ptx::smem_address(s.fn));
#pragma unroll 1
  for (int block = 0; block < share.blocks; ++block) {
    s.tile_full.wait(block % 2);
    float sums[kProducts / 2] = {};
    ptx::wgmma_fence();
#pragma unroll
    for (int slice = 0; slice < kSlices; ++slice) {
#pragma unroll
      for (int k = 0; k < 64 / 16; ++k) {
        ptx::Wgmma<bf16, kProducts>::run(
            sums, ptx::advance_desc(x, slice * kBlock * kSliceRow + 32 * k),
            ptx::advance_desc(fn, slice * kProducts * kSliceRow + 32 * k), 1);
      }
    }
    ptx::wgmma_commit_group();
    ptx::wgmma_wait_group<0>();
    ptx::wgmma_fence_operand(sums);
    __syncwarp();
    if (thread % kWarp == 0) s.tile_empty.arrive();
    store_dots(p, share, block, sums, thread);
  }
}

// grid: [tiles, groups of p.blocks blocks of tokens]. kPostMixThreads threads
template <class Y>
__global__ void __launch_bounds__(kPostMixThreads, 1)
    post_mix_kernel(const __grid_constant__ ManyParams p) {
  ptx::griddepcontrol_launch_dependents();
  auto& s = *reinterpret_cast<PostMixShared*>(ptx::dynamic_smem());
  const int thread = static_cast<int>(threadIdx.x);
  if (thread == 0) {
    for (auto& stage : s.loaded)
      for (ptx::Mbarrier& warp : stage) warp.init(kWarp);
    s.tile_full.init(kMixWarps);
    s.tile_empty.init(kDotThreads / kWarp);
    ptx::fence_mbarrier_init();
  }
  __syncthreads();
  const Share share(p);
  if (thread < kMixThreads) {
    ptx::griddepcontrol_wait();
    Mixer<Y>(p, s, share).run();
    return;
  }
  split_fn(p, s, share, thread - kMixThreads);
  ptx::fence_proxy_async();
  ptx::barrier_sync(kDotBarrier, kDotThreads);
  ptx::griddepcontrol_wait();
  multiply(p, s, share, thread - kMixThreads);
}

}  // namespace dsv4::hc_boundary_kernel::sm90_many
