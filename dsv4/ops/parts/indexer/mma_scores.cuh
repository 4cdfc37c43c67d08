// Indexer scores of packed keys of 128 dims on tensor cores, kOfficial: each mma has 16 keys and 8
// heads, bf16 in, f32 out. Both operands are exact: a key is e2m1 times a power of two, q is bf16.
// The result differs from the f32 implementation in the order of a dot product's additions and in
// the sum over heads, where four partial sums (heads 8i + 2j, 8i + 2j + 1, i ascending) are added
// pairwise. This f32 error is far below the bf16 rounding that follows, so only sums close to a tie
// can round differently.
//
// A dot product may use its dims in any order, so lane j of four loads the 16 bytes of dims
// 32j .. 32j+31, one scale group, directly from the page, and q is arranged in shared memory to
// match. With g = lane / 4, a lane loads keys g and g + 8 of a tile.

#pragma once

#include "dsv4/base/bits.h"
#include "dsv4/device/alignment.h"
#include "dsv4/device/math.cuh"
#include "dsv4/device/ptx/mma.cuh"
#include "dsv4/device/ptx/packed.cuh"
#include "dsv4/ops/parts/indexer/indexer.h"

namespace dsv4::indexer_kernel {

inline constexpr int kWidth = 128, kCodeBytes = kWidth / 2, kScaleBytes = kWidth / 32;
inline constexpr int kSteps = kWidth / 16;  // of a dot product
inline constexpr int kTileKeys = 16;
inline constexpr int kMaxHeads = 128;

struct Keys {
  const uint8_t* pages;
  int64_t page_bytes;
  int page_entries;
};
struct Queries {
  const bf16* q;  // [t, heads, kWidth]
  int64_t stride, head_stride, weight_stride;
  int heads;
  float weight_scale;

  __host__ __device__ int groups() const { return static_cast<int>(ceil_div(heads, 8)); }
  // Shared memory of one query: operand B and the weights.
  __host__ __device__ int b_words() const { return groups() * (kSteps / 2) * 32; }  // uint4
  __host__ __device__ int weight_words() const { return groups() * 4; }             // uint32_t
};

// Why the tensor cores cannot score a call of index_scores or index_select; null if they can.
template <class Args>
const char* reject_operands(const Args& args) {
  if (!args.keys.packed() || args.q.dim(2) != kWidth) return "wants packed keys of 128 values";
  if (args.q.dtype != DType::kBF16) return "wants bf16 q";
  if (args.q.dim(1) > kMaxHeads) return "more than 128 heads";
  if (!rows_on(args.keys.pages, 16)) return "pages are not on 16 bytes";
  if (!rows_on(args.q, 16)) return "q is not on 16 bytes";
  return nullptr;
}
template <class Args>
Queries queries_of(const Args& args) {
  return {.q = args.q.template as<bf16>(),
          .stride = args.q.stride[0],
          .head_stride = args.q.stride[1],
          .weight_stride = args.weights.row_stride(),
          .heads = static_cast<int>(args.q.dim(1)),
          .weight_scale = args.weight_scale};
}
inline Keys keys_of(const IndexPool& pool) {
  return {.pages = pool.pages.as<uint8_t>(),
          .page_bytes = pool.pages.row_stride(),
          .page_entries = pool.page_entries};
}

// Operand A of the mma: 16 keys, all dims.
struct KeyTile {
  uint32_t a[kSteps][4];
};

// A lane's 32 dims of a key, as stored.
struct PackedDims {
  uint4 codes;
  uint32_t scale;
};

// Two e2m1 codes as two bf16, times scale. The three bits of a code, read as a bf16, are 2^126 too
// small, subnormals included.
__device__ inline uint32_t decode_pair(uint32_t byte, __nv_bfloat162 scale) {
  const uint32_t fields =
      ((byte & 0x07) << 6) | ((byte & 0x08) << 12) | ((byte & 0x70) << 18) | ((byte & 0x80) << 24);
  const __nv_bfloat162 up = ptx::as_bf162(0x7e807e80);  // 2^126, twice
  return ptx::as_bits(__hmul2(__hmul2(ptx::as_bf162(fields), up), scale));
}

// 2^(code - 127) in bf16, twice.
__device__ inline __nv_bfloat162 decode_scale(uint32_t code) {
  const uint32_t bits = code == 255 ? 0x7fc0 : code == 0 ? 0x0040 : code << 7;
  return ptx::as_bf162(bits | bits << 16);
}

// This lane's dims of entry s. pages: of its sequence
__device__ inline PackedDims load_dims(const Keys& keys, const int32_t* pages, int s) {
  const int entry = s % keys.page_entries, j = static_cast<int>(threadIdx.x) % 4;
  const uint8_t* page = keys.pages + pages[s / keys.page_entries] * keys.page_bytes;
  return {.codes = *reinterpret_cast<const uint4*>(page + entry * kCodeBytes + 16 * j),
          .scale = page[keys.page_entries * kCodeBytes + entry * kScaleBytes + j]};
}

// which: 0 for key g, 1 for key g + 8
__device__ inline void decode_dims(const PackedDims& dims, int which, KeyTile& tile) {
  const __nv_bfloat162 scale = decode_scale(dims.scale);
  const uint32_t words[4] = {dims.codes.x, dims.codes.y, dims.codes.z, dims.codes.w};
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    const uint32_t word = words[step / 2] >> (step % 2 * 16);
    tile.a[step][which] = decode_pair(word & 0xff, scale);
    tile.a[step][which + 2] = decode_pair(word >> 8 & 0xff, scale);
  }
}

// One query in shared memory, by all threads of the CTA: heads [groups of 8][steps / 2] in the
// order in which each lane reads operand B of two steps, then the scaled weights, rounded to bf16,
// two heads per word.
template <class W>
__device__ void load_query(const Queries& in, int64_t query, const W* weights, uint4* b,
                           uint32_t* pairs) {
  const int groups = in.groups(), threads = static_cast<int>(blockDim.x);
  for (int i = threadIdx.x; i < groups * 8 * (kWidth / 8); i += threads) {
    const int head = i / (kWidth / 8), chunk = i % (kWidth / 8);  // 8 dims
    const int lane = head % 8 * 4 + chunk / 4;                    // 32 dims per lane
    uint4 dims{};
    if (head < in.heads) {
      dims = *reinterpret_cast<const uint4*>(in.q + query * in.stride + head * in.head_stride +
                                             chunk * 8);
    }
    b[(head / 8 * (kSteps / 2) + chunk % 4) * kWarp + lane] = dims;
  }
  for (int i = threadIdx.x; i < in.weight_words(); i += threads) {
    float w[2];
    for (int x = 0; x < 2; ++x) {
      const int head = 2 * i + x;
      w[x] = head < in.heads ? to_float(weights[query * in.weight_stride + head]) * in.weight_scale
                             : 0.f;
    }
    pairs[i] = ptx::as_bits(__floats2bfloat162_rn(w[0], w[1]));
  }
}

// load_query() by CTAs of at least kMaxHeads / 2 threads that have nothing else to do: the weights
// and up to 4 chunks of a thread are requested before the first is stored. Swizzled: lane i of step
// pair `half` is at i ^ 2 half, so that these stores have no bank conflicts.
template <class W>
__device__ void load_query_at_once(const Queries& in, int64_t query, const W* weights, uint4* b,
                                   uint32_t* pairs) {
  constexpr int kBatch = 4;
  const int threads = static_cast<int>(blockDim.x), thread = static_cast<int>(threadIdx.x);
  const bool has_pair = thread < in.weight_words();
  float w[2] = {};
#pragma unroll
  for (int x = 0; x < 2; ++x) {
    const int head = 2 * thread + x;
    if (has_pair && head < in.heads) w[x] = to_float(weights[query * in.weight_stride + head]);
  }
  const int chunks = in.groups() * 8 * (kWidth / 8);  // of 8 dims
#pragma unroll 1
  for (int first = thread; first < chunks; first += kBatch * threads) {
    uint4 dims[kBatch];
#pragma unroll
    for (int u = 0; u < kBatch; ++u) {
      const int i = first + u * threads, head = i / (kWidth / 8), chunk = i % (kWidth / 8);
      dims[u] = {};
      if (head < in.heads) {
        dims[u] = *reinterpret_cast<const uint4*>(in.q + query * in.stride + head * in.head_stride +
                                                  chunk * 8);
      }
    }
#pragma unroll
    for (int u = 0; u < kBatch; ++u) {
      const int i = first + u * threads, head = i / (kWidth / 8), chunk = i % (kWidth / 8);
      const int half = chunk % 4, lane = head % 8 * 4 + chunk / 4;  // 32 dims per lane
      if (i < chunks) b[(head / 8 * (kSteps / 2) + half) * kWarp + (lane ^ 2 * half)] = dims[u];
    }
  }
  if (has_pair)
    pairs[thread] =
        ptx::as_bits(__floats2bfloat162_rn(w[0] * in.weight_scale, w[1] * in.weight_scale));
}

// bf16(relu(bf16(dot)) * weight) of two heads, added to sum. NaN is kept.
__device__ inline float add_heads(float sum, float dot0, float dot1, __nv_bfloat162 weights) {
  const __nv_bfloat162 qk = __floats2bfloat162_rn(dot0, dot1);
  const __nv_bfloat162 relu = __hmax2_nan(qk, ptx::as_bf162(0));
  const float2 products = __bfloat1622float2(__hmul2(relu, weights));
  return sum + products.x + products.y;
}

// Scores of this warp's keys for the query in shared memory. sums[tile][r]: key 16 tile + 8 r + g,
// the same in the four lanes of g. kTogether: groups of heads whose products are in flight at a
// time; the sums are the same.
template <int kTiles, int kTogether = 1, bool kSwizzled = false>
__device__ void score(const KeyTile (&tiles)[kTiles], const uint4* b, const uint32_t* weights,
                      int groups, float (&sums)[kTiles][2]) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
#pragma unroll kTogether
  for (int group = 0; group < groups; ++group) {
    float qk[kTiles][4] = {};
#pragma unroll
    for (int half = 0; half < kSteps / 2; ++half) {
      const int at = kSwizzled ? lane ^ 2 * half : lane;
      const uint4 dims = b[(group * (kSteps / 2) + half) * kWarp + at];
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
        ptx::mma_m16n8k16_bf16(qk[tile], tiles[tile].a[2 * half], dims.x, dims.y);
        ptx::mma_m16n8k16_bf16(qk[tile], tiles[tile].a[2 * half + 1], dims.z, dims.w);
      }
    }
    const __nv_bfloat162 weight = ptx::as_bf162(weights[group * 4 + lane % 4]);
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      sums[tile][0] = add_heads(sums[tile][0], qk[tile][0], qk[tile][1], weight);
      sums[tile][1] = add_heads(sums[tile][1], qk[tile][2], qk[tile][3], weight);
    }
  }
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile) {
    for (int r = 0; r < 2; ++r) {
      sums[tile][r] += __shfl_xor_sync(~0u, sums[tile][r], 1);
      sums[tile][r] += __shfl_xor_sync(~0u, sums[tile][r], 2);
    }
  }
}

}  // namespace dsv4::indexer_kernel
