// 5. How long does a tile of 64 keys x 4 queries of the index scores take: keys decoded from e2m1
//    with UE8M0 to bf16 in registers, RS wgmma m64n256 (4 x 64 heads) over 128 dims, each dot to
//    bf16, ReLU, bf16 product with the head's weight, f32 sum over heads (design 3.2)?
//    Floor 1,024 clk of MMA a tile and SM. Prediction <= 1,200 with three warpgroups.
//
// With three warpgroups ptxas 13.0 serializes the products (C7512: 168 registers do not suffice
// beside 128 accumulators), so that row is an upper bound only; two have 255.
//
// Not measured: pages, the radix select, loading of q, keys from memory (they come from L2 here).

#include <cstring>

#include "bench/micro/micro.h"
#include "bench/micro/stream_data.cuh"
#include "dsv4/formats/e2m1.h"
#include "dsv4/formats/ue8m0.h"
#include "dsv4/ops/parts/indexer/mma_scores.cuh"

namespace dsv4::micro {
namespace {

constexpr int kHeads = 64, kQueries = 4, kQueryRows = kHeads * kQueries, kWidth = 128;
constexpr int kKeys = 4096, kKeyBytes = 64;
constexpr int kWeightStride = 36;  // words: 32 of a lane of four, padded against bank conflicts

struct IndexParams {
  const unsigned char* codes;   // [kKeys, 64]
  const unsigned char* scales;  // [kKeys, 4]
  const __nv_bfloat16* q;       // [kQueryRows, 128]
  const __nv_bfloat16* weight;  // [kQueryRows]
  int tiles;                    // of 64 keys that a CTA scores, round and round
  float* scores;                // [CTAs, kQueries, kKeys]
  Span* spans;
};

struct IndexShared {
  unsigned char q[2][kQueryRows * 128];  // steps 0-3 and 4-7 of the products, swizzled
  uint32_t weight[4][kWeightStride];     // of lanes t: [4 queries][8 groups of 8 heads]
};

// The dim at position `p` (of 16) of step `s`, as decode_dims() has them.
__host__ __device__ constexpr int dim_at(int s, int p) {
  return 32 * (p % 8 / 2) + 4 * s + p / 8 * 2 + p % 2;
}

struct PackedTile {  // keys g and g + 8 of a warp
  indexer_kernel::PackedDims dims[2];

  // Decoding does not move before this point.
  __device__ void hide() {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      uint4& codes = dims[h].codes;
      asm volatile("" : "+r"(codes.x), "+r"(codes.y), "+r"(codes.z), "+r"(codes.w)::"memory");
    }
  }
  __device__ void load(const IndexParams& p, int first) {
    const int lane = static_cast<int>(threadIdx.x) % kWarpLanes;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int key = first + lane / 4 + 8 * h;
      dims[h].codes = *reinterpret_cast<const uint4*>(p.codes + key * kKeyBytes + lane % 4 * 16);
      dims[h].scale = p.scales[key * 4 + lane % 4];
    }
  }
};

// Sums of relu(bf16(dot)) * weight over the heads of each query, of rows g and g + 8.
__device__ inline void add_heads(const float (&dots)[128], const IndexShared& s,
                                 float (&sums)[kQueries][2]) {
  const int t = static_cast<int>(threadIdx.x) % 4;
#pragma unroll
  for (int query = 0; query < kQueries; ++query) {
    uint32_t weights[8];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const uint4 four = *reinterpret_cast<const uint4*>(&s.weight[t][query * 8 + i * 4]);
      weights[4 * i] = four.x, weights[4 * i + 1] = four.y;
      weights[4 * i + 2] = four.z, weights[4 * i + 3] = four.w;
    }
    sums[query][0] = sums[query][1] = 0;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int at = (query * 8 + i) * 4 + 2 * h;
        uint32_t pair;
        asm("cvt.rn.relu.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(dots[at + 1]), "f"(dots[at]));
        const uint32_t product =
            ptx::as_bits(__hmul2(ptx::as_bf162(pair), ptx::as_bf162(weights[i])));
        sums[query][h] += __uint_as_float(product << 16);
        sums[query][h] += __uint_as_float(product & 0xffff0000u);
      }
    }
  }
}

template <int kGroups>
__global__ void __launch_bounds__(kGroups * 128, 1)
    index_kernel(const __grid_constant__ IndexParams p) {
  extern __shared__ __align__(1024) unsigned char memory[];
  auto& s = *reinterpret_cast<IndexShared*>(memory);
  const int thread = static_cast<int>(threadIdx.x), lane = thread % kWarpLanes;
  for (int i = thread; i < kQueryRows * kWidth; i += kGroups * 128) {
    const int row = i / kWidth, k = i % kWidth, panel = k / 64, byte = k % 64 * 2;
    const int at = row * 128 + (byte / 16 ^ row % 8) * 16 + byte % 16;
    *reinterpret_cast<__nv_bfloat16*>(s.q[panel] + at) = p.q[row * kWidth + dim_at(k / 16, k % 16)];
  }
  for (int i = thread; i < kQueryRows;
       i += kGroups * 128) {  // heads 8 group + 2t, 8 group + 2t + 1
    const int group = i / 8, t = i % 8 / 2;
    reinterpret_cast<__nv_bfloat16*>(&s.weight[t][group])[i % 2] = p.weight[i];
  }
  ptx::fence_proxy_async();
  __syncthreads();
  const int group = __shfl_sync(~0u, thread / 128, 0), warp = thread / kWarpLanes % 4;
  const uint64_t q = ptx::make_smem_desc_128B(ptx::smem_address(s.q));
  float* const scores = p.scores + int64_t{blockIdx.x} * kQueries * kKeys;
  const uint64_t begin_ns = nanoseconds();
  const int64_t begin = clock64();
  PackedTile packed;
  packed.load(p, group * 64 % kKeys + warp * 16);
#pragma unroll 1
  for (int tile = group; tile < p.tiles; tile += kGroups) {
    const int first = tile * 64 % kKeys + warp * 16;
    float dots[128];
    // Three warpgroups have 168 registers: the keys of a quarter of the dims at a time.
    constexpr int kSteps = kGroups == 3 ? 2 : 8;
#pragma unroll
    for (int from = 0; from < 8; from += kSteps) {
      indexer_kernel::KeyTile keys;
      packed.hide();
      indexer_kernel::decode_dims(packed.dims[0], 0, keys);
      indexer_kernel::decode_dims(packed.dims[1], 1, keys);
      ptx::wgmma_fence();
#pragma unroll
      for (int step = from; step < from + kSteps; ++step) {
        ptx::Wgmma<__nv_bfloat16, 256>::run(
            dots, keys.a[step],
            ptx::advance_desc(q, static_cast<uint32_t>(step / 4 * sizeof(s.q[0]) + step % 4 * 32)),
            step != 0);
      }
      ptx::wgmma_commit_group();
      ptx::wgmma_wait_group<0>();
    }
    ptx::wgmma_fence_operand(dots);
    packed.load(p, (tile + kGroups) * 64 % kKeys + warp * 16);
    float sums[kQueries][2];
    add_heads(dots, s, sums);
#pragma unroll
    for (int query = 0; query < kQueries; ++query) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        float sum = sums[query][h];
        sum += __shfl_xor_sync(~0u, sum, 1);
        sum += __shfl_xor_sync(~0u, sum, 2);
        if (lane % 4 == query) scores[query * kKeys + first + lane / 4 + 8 * h] = sum;
      }
    }
  }
  __syncthreads();
  if (thread == 0)
    p.spans[blockIdx.x] = {clock64() - begin, static_cast<int64_t>(nanoseconds() - begin_ns)};
}

__global__ void fill_keys(unsigned char* codes, unsigned char* scales) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i < kKeys * kKeyBytes) codes[i] = static_cast<unsigned char>(hash(i + 77));
  if (i < kKeys * 4) scales[i] = static_cast<unsigned char>(120 + hash(i + 1234567) % 8);
}

std::vector<double> index_reference(const std::vector<unsigned char>& codes,
                                    const std::vector<unsigned char>& scales,
                                    const std::vector<__nv_bfloat16>& q,
                                    const std::vector<__nv_bfloat16>& weight) {
  std::vector<double> scores(size_t{kQueries} * kKeys);
  for (int key = 0; key < kKeys; ++key) {
    float values[kWidth];
    for (int i = 0; i < kWidth; ++i) {
      values[i] = e2m1_to_f32(e2m1_code(codes[static_cast<size_t>(key * 64 + i / 2)], i)) *
                  ue8m0_to_f32(scales[static_cast<size_t>(key * 4 + i / 32)]);
    }
    for (int row = 0; row < kQueryRows; ++row) {
      double dot = 0;
      for (int i = 0; i < kWidth; ++i)
        dot += double{values[i]} * static_cast<float>(q[static_cast<size_t>(row * kWidth + i)]);
      const float rounded = __bfloat162float(__float2bfloat16_rn(static_cast<float>(dot)));
      const float product =
          std::max(rounded, 0.f) * static_cast<float>(weight[static_cast<size_t>(row)]);
      scores[static_cast<size_t>(row / kHeads * kKeys + key)] +=
          __bfloat162float(__float2bfloat16_rn(product));
    }
  }
  return scores;
}

template <int kGroups>
void run(IndexParams p, const Buffer<float>& scores, const Buffer<Span>& spans,
         const std::vector<double>& expected) {
  const int ctas = static_cast<int>(spans.count);
  constexpr int kShared = sizeof(IndexShared);
  MICRO_CUDA(cudaFuncSetAttribute(index_kernel<kGroups>,
                                  cudaFuncAttributeMaxDynamicSharedMemorySize, kShared));
  MICRO_CUDA(cudaMemset(scores.data, 0xff, scores.count * sizeof(float)));
  const auto launch = [&] { index_kernel<kGroups><<<ctas, kGroups * 128, kShared>>>(p); };
  const Timing t = measure(launch, &spans);
  const auto of_last = scores.host((ctas - 1) * expected.size(), expected.size());
  Line line("5", "index_tile_" + std::to_string(kGroups) + "_warpgroups");
  line.number("clk_a_tile", t.cycles / p.tiles).number("floor", 1024).expected(1200);
  line.number("tflops", 2.0 * 64 * kQueryRows * kWidth * p.tiles * ctas / t.us * 1e-6);
  line.number("us", t.us).number("mhz", t.mhz);
  line.check(relative_error(of_last, expected), 2e-3);  // dots near a tie of bf16 round either way
}

}  // namespace

void index_tile() {
  const int ctas = multiprocessors();
  Buffer<unsigned char> codes(size_t{kKeys} * kKeyBytes), scales(size_t{kKeys} * 4);
  Buffer<__nv_bfloat16> q(size_t{kQueryRows} * kWidth), weight(kQueryRows);
  Buffer<float> scores(static_cast<size_t>(ctas) * kQueries * kKeys);
  Buffer<Span> spans(static_cast<size_t>(ctas));
  fill_keys<<<kKeys * kKeyBytes / 256, 256>>>(codes.data, scales.data);
  MICRO_CUDA(cudaGetLastError());
  random_x<<<128, 256>>>(q.data, static_cast<int64_t>(q.count));
  random_x<<<1, 256>>>(weight.data, static_cast<int64_t>(weight.count));
  MICRO_CUDA(cudaDeviceSynchronize());
  const auto expected = index_reference(codes.host(), scales.host(), q.host(), weight.host());
  const IndexParams p{.codes = codes.data,
                      .scales = scales.data,
                      .q = q.data,
                      .weight = weight.data,
                      .tiles = 24 * kKeys / 64,  // a multiple of 2 and 3
                      .scores = scores.data,
                      .spans = spans.data};
  run<3>(p, scores, spans, expected);
  run<2>(p, scores, spans, expected);
}

}  // namespace dsv4::micro
