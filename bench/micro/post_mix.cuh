// What the forms of post_mix share (post_mix.cu): shapes, the mix of eight columns, fn in three
// bf16 terms, and the persistent form:
//
//   a CTA keeps one tile of 128 columns, with fn's terms in shared memory, and walks over tokens 32
//   at a time; each thread brings its own 16 bytes of every stream by cp.async two steps ahead, so
//   loads stay in flight through the dots

#pragma once

#include "bench/micro/micro.h"
#include "bench/micro/stream_data.cuh"
#include "dsv4/device/ptx/cp_async.cuh"
#include "dsv4/device/ptx/ldmatrix.cuh"
#include "dsv4/device/ptx/mma.cuh"
#include "dsv4/device/ptx/packed.cuh"

namespace dsv4::micro {

constexpr int kT = 4096, kD = 4096, kStreams = 4, kTileColumns = 128, kDots = 24;
constexpr int kTiles = kD / kTileColumns, kPartials = kDots + 1;
constexpr int kValues = kStreams * kTileColumns, kMixThreads = 256, kMixWarps = kMixThreads / 32;

struct MixParams {
  const __nv_bfloat16* x;  // [kT, 4, kD]
  const __nv_bfloat16* y;  // [kT, kD]
  const float* comb;       // [kT, 4, 4]
  const float* post;       // [kT, 4]
  const float* fn;         // [24, 4, kD]
  __nv_bfloat16* out;      // [kT, 4, kD]
  float* partials;         // [kT, 32, 25], or [32, kT, 25] by these strides
  int token_stride, tile_stride;
  const uint2* prepared;  // fn's terms in fragment order: [32 tiles][8 slices][4][9][32 lanes]
};

// Chunk `chunk` (8 values) of token t's 512 in shared memory.
__device__ inline int mix_at(int t, int chunk) {
  return t * kValues * 2 + (chunk ^ t % 8) * 16;
}

__device__ inline void to_floats(uint4 chunk, float (&values)[8]) {
  const uint32_t words[4] = {chunk.x, chunk.y, chunk.z, chunk.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    values[2 * i] = __uint_as_float(words[i] << 16);
    values[2 * i + 1] = __uint_as_float(words[i] & 0xffff0000u);
  }
}

// One token, 8 columns of all streams: stores X' at `out` (streams kD apart) and in the tile;
// returns the sum of squares of what it stores.
__device__ inline float mix_loaded(const uint4 (&in)[kStreams], uint4 y_in,
                                   const float4 (&combs)[kStreams], float4 post, __nv_bfloat16* out,
                                   int in_tile, int chunk, unsigned char* tile) {
  const float posts[4] = {post.x, post.y, post.z, post.w};
  float x[kStreams][8], y[8], squares = 0;
#pragma unroll
  for (int s = 0; s < kStreams; ++s) to_floats(in[s], x[s]);
  to_floats(y_in, y);
#pragma unroll
  for (int r = 0; r < kStreams; ++r) {
    const float4 comb = combs[r];
    uint32_t words[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      float two[2];
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const int c = 2 * i + j;
        two[j] = comb.x * x[0][c] + comb.y * x[1][c] + comb.z * x[2][c] + comb.w * x[3][c] +
                 posts[r] * y[c];
      }
      words[i] = ptx::pack_bf16x2(two[0], two[1]);
      const float low = __uint_as_float(words[i] << 16),
                  high = __uint_as_float(words[i] & 0xffff0000u);
      squares += low * low + high * high;
    }
    const uint4 result = {words[0], words[1], words[2], words[3]};
    *reinterpret_cast<uint4*>(out + r * kD) = result;
    *reinterpret_cast<uint4*>(tile + mix_at(in_tile, r * 16 + chunk)) = result;
  }
  return squares;
}

// f32 = three bf16 terms; pairs of neighboring k.
__device__ inline void split(float2 value, uint32_t (&terms)[3]) {
#pragma unroll
  for (int i = 0; i < 3; ++i) {
    terms[i] = ptx::pack_bf16x2(value.x, value.y);
    value.x -= __uint_as_float(terms[i] << 16);
    value.y -= __uint_as_float(terms[i] & 0xffff0000u);
  }
}

// fn's terms in the order in which lanes read operand B: entry n * 3 + term of step `step` of a
// slice of 64 values.
static __global__ void prepare_fn(const float* fn, uint2* to) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  const int lane = i % 32, n = i / 32 % 3, step = i / 96 % 4, slice = i / 384 % 8, tile = i / 3072;
  if (tile >= kTiles) return;
  const int value = slice * 64 + step * 16 + lane % 4 * 2;
  const float* const from = fn + int64_t{n * 8 + lane / 4} * kStreams * kD +
                            value / kTileColumns * kD + tile * kTileColumns + value % kTileColumns;
  uint32_t low[3], high[3];
  split(*reinterpret_cast<const float2*>(from), low);
  split(*reinterpret_cast<const float2*>(from + 8), high);
  for (int term = 0; term < 3; ++term)
    to[(i / 96 * 9 + n * 3 + term) * 32 + lane] = {low[term], high[term]};
}

struct MixRing {
  static constexpr int kThreads = 512, kTokens = 32, kStages = 2;
  alignas(1024) unsigned char tile[kTokens * kValues * 2];
  uint4 in[kStages][kStreams + 1][kThreads];
  float4 factors[kStages][kTokens][5];
  uint2 fn[8][4][9][32];
  float partial[8][kTokens][kDots], squares[2][kTokens];
};

__device__ inline void prefetch_mix(const MixParams& p, MixRing& s, int stage, int token,
                                    int column) {
  const int thread = static_cast<int>(threadIdx.x), chunk = thread % 16;
#pragma unroll
  for (int r = 0; r < kStreams; ++r)
    ptx::cp_async<16>(&s.in[stage][r][thread], p.x + (int64_t{token} * kStreams + r) * kD + column);
  ptx::cp_async<16>(&s.in[stage][kStreams][thread], p.y + int64_t{token} * kD + column);
  if (chunk < 5) {
    ptx::cp_async<16>(&s.factors[stage][thread / 16][chunk],
                      chunk < 4 ? p.comb + token * 16 + chunk * 4 : p.post + token * 4);
  }
}

// Warp w: slice w % 8 of the values, tokens 16 (w / 8) and on.
__device__ inline void ring_dots(MixRing& s) {
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int slice = warp % 8, first = warp / 8 * 16;
  float sums[3][4] = {};
#pragma unroll
  for (int step = 0; step < 4; ++step) {
    uint32_t a[4];
    ptx::ldmatrix_x4(a, s.tile + mix_at(first + lane % 16, slice * 8 + step * 2 + lane / 16));
#pragma unroll
    for (int term = 0; term < 3; ++term) {
#pragma unroll
      for (int n = 0; n < 3; ++n) {
        const uint2 b = s.fn[slice][step][n * 3 + term][lane];
        ptx::mma_m16n8k16_bf16(sums[n], a, b.x, b.y);
      }
    }
  }
#pragma unroll
  for (int n = 0; n < 3; ++n) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      *reinterpret_cast<float2*>(
          &s.partial[slice][first + lane / 4 + 8 * h][n * 8 + lane % 4 * 2]) = {sums[n][2 * h],
                                                                                sums[n][2 * h + 1]};
    }
  }
}

static __global__ void __launch_bounds__(MixRing::kThreads, 1)
    mix_ring_kernel(const __grid_constant__ MixParams p, int tokens) {
  extern __shared__ __align__(1024) unsigned char memory[];
  auto& s = *reinterpret_cast<MixRing*>(memory);
  constexpr int kTokens = MixRing::kTokens, kThreads = MixRing::kThreads;
  const int thread = static_cast<int>(threadIdx.x), chunk = thread % 16, mine = thread / 16;
  const int tile_index = static_cast<int>(blockIdx.x) % kTiles;
  const int first_token = static_cast<int>(blockIdx.x) / kTiles * tokens;
  const int column = tile_index * kTileColumns + chunk * 8, steps = tokens / kTokens;
  prefetch_mix(p, s, 0, first_token + mine, column);
  asm volatile("cp.async.commit_group;" ::: "memory");
  if (steps > 1) prefetch_mix(p, s, 1, first_token + kTokens + mine, column);
  asm volatile("cp.async.commit_group;" ::: "memory");
  constexpr int kFnChunks = sizeof(s.fn) / 16;
  for (int i = thread; i < kFnChunks; i += kThreads)
    reinterpret_cast<uint4*>(s.fn)[i] =
        reinterpret_cast<const uint4*>(p.prepared)[tile_index * kFnChunks + i];
#pragma unroll 1
  for (int step = 0; step < steps; ++step) {
    const int stage = step % 2, token = first_token + step * kTokens;
    asm volatile("cp.async.wait_group 1;" ::: "memory");
    __syncwarp();
    uint4 in[kStreams];
    float4 combs[kStreams];
#pragma unroll
    for (int r = 0; r < kStreams; ++r) {
      in[r] = s.in[stage][r][thread];
      combs[r] = s.factors[stage][mine][r];
    }
    const uint4 y = s.in[stage][kStreams][thread];
    const float4 post = s.factors[stage][mine][4];
    __syncwarp();  // all lanes have read the stage
    if (step + 2 < steps) prefetch_mix(p, s, stage, token + 2 * kTokens + mine, column);
    asm volatile("cp.async.commit_group;" ::: "memory");
    float sum =
        mix_loaded(in, y, combs, post, p.out + int64_t{token + mine} * kStreams * kD + column, mine,
                   chunk, s.tile);
#pragma unroll
    for (int i = 8; i > 0; i /= 2) sum += __shfl_xor_sync(~0u, sum, i);
    if (chunk == 0) s.squares[stage][mine] = sum;
    __syncthreads();
    ring_dots(s);
    __syncthreads();
    for (int i = thread; i < kTokens * kPartials; i += kThreads) {
      const int t = i / kPartials, dot = i % kPartials;
      float total = dot == kDots ? s.squares[stage][t] : 0;
      if (dot < kDots) {
#pragma unroll
        for (int w = 0; w < 8; ++w) total += s.partial[w][t][dot];
      }
      p.partials[int64_t{token + t} * p.token_stride + int64_t{tile_index} * p.tile_stride + dot] =
          total;
    }
  }
}

}  // namespace dsv4::micro
