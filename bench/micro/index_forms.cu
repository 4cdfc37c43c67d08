// 5, second try: forms of the index tile of index_tile.cu (64 keys x 4 queries x 64 heads). That
// kernel took 1,655 clk against 1,200: one warp a scheduler decodes and sums after each product.
//
//   bf16, e4m3   operands; keys and q are e2m1 times powers of two, exact in both. The tensor core
//                keeps about 14 bits of a sum of e4m3 products, so more dots round the other way
//   groups       warpgroups; 4 have half of the columns in registers at a time (m64n128 twice)
//   mma_sums     bf16 products of dots and weights are already A fragments: mma.sync with ones sums
//                them over the heads, in place of 3 instructions a dot and the shuffles

#include "bench/micro/stream_data.cuh"
#include "dsv4/device/ptx/mma.cuh"
#include "dsv4/device/ptx/packed.cuh"
#include "dsv4/formats/e2m1.h"
#include "dsv4/ops/parts/indexer/mma_scores.cuh"

namespace dsv4::micro {
namespace {

constexpr int kHeads = 64, kQueries = 4, kQueryRows = kHeads * kQueries, kWidth = 128;
constexpr int kKeys = 4096, kWeightStride = 36, kScaleBias = 124;

struct FormParams {
  const uint4* codes;           // [kKeys, 4]
  const unsigned char* scales;  // [kKeys, 4], 120 .. 127
  const float* q;               // [kQueryRows, 128]
  const __nv_bfloat16* weight;  // [kQueryRows]
  int tiles;
  float* scores;  // [CTAs, kQueries, kKeys]
  Span* spans;
};

struct FormShared {
  unsigned char q[2][kQueryRows * 128];  // panels of 128 bytes a row, swizzled; e4m3 has one
  uint32_t weight[4][kWeightStride];     // of lanes t: [4 queries][8 groups of 8 heads]
};

struct Packed {
  indexer_kernel::PackedDims dims[2];  // keys g and g + 8
  __device__ void load(const FormParams& p, int first) {
    const int lane = static_cast<int>(threadIdx.x) % kWarpLanes;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int key = first + lane / 4 + 8 * h;
      dims[h].codes = p.codes[key * 4 + lane % 4];
      dims[h].scale = p.scales[key * 4 + lane % 4];
    }
  }
};

struct Bf16Keys {
  using Type = __nv_bfloat16;
  static constexpr const char* kName = "bf16";
  static constexpr int kSteps = 8, kPanels = 2;
  indexer_kernel::KeyTile tile;
  __device__ void decode(const Packed& packed) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      indexer_kernel::PackedDims dims = packed.dims[h];
      dims.scale += 127 - kScaleBias;
      indexer_kernel::decode_dims(dims, h, tile);
    }
  }
  __device__ const uint32_t (&fragment(int step) const)[4] {
    return tile.a[step];
  }
  // The dim at position `at` of a row of q.
  __host__ __device__ static int dim_at(int at) {
    const int s = at / 16, p = at % 16;
    return 32 * (p % 8 / 2) + 4 * s + p / 8 * 2 + p % 2;
  }
};

struct E4m3Keys {
  using Type = __nv_fp8_e4m3;
  static constexpr const char* kName = "e4m3";
  static constexpr int kSteps = 4, kPanels = 1;
  uint32_t a[4][4];
  // e2m1 / 16 in e4m3 is normal; a scale byte of 120 .. 127 adds 0 .. 7 to its exponent.
  __device__ void decode(const Packed& packed) {
    constexpr uint32_t kLow = 0x1c181000u, kHigh = 0x2c282420u;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const uint32_t e = packed.dims[h].scale - 120;
      const uint32_t low = kLow + e * 0x08080800u, high = kHigh + e * 0x08080808u;
      const uint4 codes = packed.dims[h].codes;
      const uint32_t words[4] = {codes.x, codes.y, codes.z, codes.w};
#pragma unroll
      for (int step = 0; step < 4; ++step) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const uint32_t select = (half == 0 ? words[step] : words[step] >> 16) & 0x7777u;
          const uint32_t twice = ptx::prmt(words[step], 0, half == 0 ? 0x1100 : 0x3322);
          a[step][2 * half + h] =
              ptx::prmt(low, high, select) | ((twice << 4) & 0x00800080u) | (twice & 0x80008000u);
        }
      }
    }
  }
  __device__ const uint32_t (&fragment(int step) const)[4] {
    return a[step];
  }
  __host__ __device__ static int dim_at(int at) {
    const int s = at / 32, p = at % 32;
    return 32 * (p % 16 / 4) + 8 * s + p / 16 * 4 + p % 4;
  }
};

// Scores of the queries of `dots` (64 columns each), of rows g and g + 8: of this lane's heads, or
// with kMmaSums of all.
template <int kCount, bool kMmaSums>
__device__ inline void sum_heads(const float (&dots)[kCount * 32], const uint32_t* weights,
                                 float (&sums)[kCount][2]) {
#pragma unroll
  for (int query = 0; query < kCount; ++query) {
    float total[4] = {};
    uint32_t product[8][2];
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const uint32_t weight = weights[query * 8 + i];
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int at = (query * 8 + i) * 4 + 2 * h;
        uint32_t pair;
        asm("cvt.rn.relu.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(dots[at + 1]), "f"(dots[at]));
        product[i][h] = ptx::as_bits(__hmul2(ptx::as_bf162(pair), ptx::as_bf162(weight)));
        if constexpr (!kMmaSums) {
          total[h] += __uint_as_float(product[i][h] << 16);
          total[2 + h] += __uint_as_float(product[i][h] & 0xffff0000u);
        }
      }
      if constexpr (kMmaSums) {
        constexpr uint32_t kOnes = 0x3f803f80u;
        if (i % 2 == 1) {
          const uint32_t a[4] = {product[i - 1][0], product[i - 1][1], product[i][0],
                                 product[i][1]};
          ptx::mma_m16n8k16_bf16(total, a, kOnes, kOnes);
        }
      }
    }
    sums[query][0] = kMmaSums ? total[0] : total[0] + total[2];
    sums[query][1] = kMmaSums ? total[2] : total[1] + total[3];
  }
}

template <class K>
__device__ void fill_form(const FormParams& p, FormShared& s, int threads) {
  using T = typename K::Type;
  constexpr int kPerPanel = 128 / sizeof(T);
  const int thread = static_cast<int>(threadIdx.x);
  for (int i = thread; i < kQueryRows * kWidth; i += threads) {
    const int row = i / kWidth, k = i % kWidth, byte = k % kPerPanel * static_cast<int>(sizeof(T));
    const int at = row * 128 + (byte / 16 ^ row % 8) * 16 + byte % 16;
    *reinterpret_cast<T*>(s.q[k / kPerPanel] + at) =
        static_cast<T>(p.q[row * kWidth + K::dim_at(k)]);
  }
  for (int i = thread; i < kQueryRows; i += threads)  // heads 8 group + 2t, 8 group + 2t + 1
    reinterpret_cast<__nv_bfloat16*>(&s.weight[i % 8 / 2][i / 8])[i % 2] = p.weight[i];
  ptx::fence_proxy_async();
  __syncthreads();
}

template <class K, int kGroups, int kHalves, bool kMmaSums>
__global__ void __launch_bounds__(kGroups * 128, 1)
    form_kernel(const __grid_constant__ FormParams p) {
  extern __shared__ __align__(1024) unsigned char memory[];
  auto& s = *reinterpret_cast<FormShared*>(memory);
  constexpr int kCount = kQueries / kHalves, kN = kQueryRows / kHalves;
  const int thread = static_cast<int>(threadIdx.x), lane = thread % kWarpLanes;
  fill_form<K>(p, s, kGroups * 128);
  const int group = __shfl_sync(~0u, thread / 128, 0), warp = thread / kWarpLanes % 4;
  const uint64_t q = ptx::make_smem_desc_128B(ptx::smem_address(s.q));
  float* const scores = p.scores + int64_t{blockIdx.x} * kQueries * kKeys;
  const uint64_t begin_ns = nanoseconds();
  const int64_t begin = clock64();
  Packed packed;
  packed.load(p, group * 64 % kKeys + warp * 16);
#pragma unroll 1
  for (int tile = group; tile < p.tiles; tile += kGroups) {
    const int first = tile * 64 % kKeys + warp * 16;
    K keys;
    keys.decode(packed);
    packed.load(p, (tile + kGroups) * 64 % kKeys + warp * 16);
#pragma unroll 1
    for (int half = 0; half < kHalves; ++half) {
      float dots[kN / 2];
      ptx::wgmma_fence();
#pragma unroll
      for (int step = 0; step < K::kSteps; ++step) {
        constexpr int kPerPanel = K::kSteps / K::kPanels;
        const int at = step / kPerPanel * static_cast<int>(sizeof(s.q[0])) + half * kN * 128 +
                       step % kPerPanel * 32;
        ptx::Wgmma<typename K::Type, kN>::run(
            dots, keys.fragment(step), ptx::advance_desc(q, static_cast<uint32_t>(at)), step != 0);
      }
      ptx::wgmma_commit_group();
      uint32_t weights[kCount * 8];
#pragma unroll
      for (int i = 0; i < kCount * 2; ++i) {
        const uint4 four =
            *reinterpret_cast<const uint4*>(&s.weight[lane % 4][half * kCount * 8 + i * 4]);
        weights[4 * i] = four.x, weights[4 * i + 1] = four.y;
        weights[4 * i + 2] = four.z, weights[4 * i + 3] = four.w;
      }
      ptx::wgmma_wait_group<0>();
      ptx::wgmma_fence_operand(dots);
      float sums[kCount][2];
      sum_heads<kCount, kMmaSums>(dots, weights, sums);
#pragma unroll
      for (int query = 0; query < kCount; ++query) {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          float sum = sums[query][h];
          if constexpr (!kMmaSums) {
            sum += __shfl_xor_sync(~0u, sum, 1);
            sum += __shfl_xor_sync(~0u, sum, 2);
          }
          if (lane % 4 == query)
            scores[(half * kCount + query) * kKeys + first + lane / 4 + 8 * h] = sum;
        }
      }
    }
  }
  __syncthreads();
  if (thread == 0)
    p.spans[blockIdx.x] = {clock64() - begin, static_cast<int64_t>(nanoseconds() - begin_ns)};
}

float q_value(int i) {  // e2m1 times 2^-2 .. 2^1
  const uint32_t h = hash(static_cast<uint64_t>(i) + 99);
  const float value = kCodebookFp4[h % 8] * static_cast<float>(1 << (h / 8 % 4)) / 4;
  return h / 32 % 2 ? -value : value;
}

std::vector<double> form_reference(const std::vector<unsigned char>& codes,
                                   const std::vector<unsigned char>& scales,
                                   const std::vector<float>& q,
                                   const std::vector<__nv_bfloat16>& weight) {
  std::vector<double> scores(size_t{kQueries} * kKeys);
  for (int key = 0; key < kKeys; ++key) {
    float values[kWidth];
    for (int i = 0; i < kWidth; ++i) {
      values[i] = e2m1_to_f32(e2m1_code(codes[static_cast<size_t>(key * 64 + i / 2)], i)) *
                  std::ldexp(1.f, scales[static_cast<size_t>(key * 4 + i / 32)] - kScaleBias);
    }
    for (int row = 0; row < kQueryRows; ++row) {
      float dot = 0;  // exact: multiples of a power of two within 2^24
      for (int i = 0; i < kWidth; ++i) dot += values[i] * q[static_cast<size_t>(row * kWidth + i)];
      const float rounded = __bfloat162float(__float2bfloat16_rn(dot));
      const float product =
          std::max(rounded, 0.f) * static_cast<float>(weight[static_cast<size_t>(row)]);
      scores[static_cast<size_t>(row / kHeads * kKeys + key)] +=
          __bfloat162float(__float2bfloat16_rn(product));
    }
  }
  return scores;
}

template <class K, int kGroups, int kHalves, bool kMmaSums>
void run(const FormParams& p, const Buffer<float>& scores, const Buffer<Span>& spans,
         const std::vector<double>& expected) {
  const auto kernel = form_kernel<K, kGroups, kHalves, kMmaSums>;
  const int ctas = static_cast<int>(spans.count);
  constexpr int kShared = sizeof(FormShared);
  MICRO_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kShared));
  MICRO_CUDA(cudaMemset(scores.data, 0xff, scores.count * sizeof(float)));
  const Timing t = measure([&] { kernel<<<ctas, kGroups * 128, kShared>>>(p); }, &spans);
  const auto of_last = scores.host((ctas - 1) * expected.size(), expected.size());
  Line line("5", std::string("index_") + K::kName + (kMmaSums ? "_mma_sums" : "_vector_sums"));
  line.number("warpgroups", kGroups).number("columns_at_once", kQueryRows / kHalves);
  line.number("clk_a_tile", t.cycles / p.tiles).number("floor", K::kSteps * 128);
  line.number("tflops", 2.0 * 64 * kQueryRows * kWidth * p.tiles * ctas / t.us * 1e-6);
  line.number("us", t.us).number("mhz", t.mhz);
  line.check(relative_error(of_last, expected), 4e-3);  // dots near a tie of bf16
}

template <class K>
void run_all(const FormParams& p, const Buffer<float>& scores, const Buffer<Span>& spans,
             const std::vector<double>& expected) {
  run<K, 2, 1, false>(p, scores, spans, expected);
  run<K, 2, 1, true>(p, scores, spans, expected);
  run<K, 4, 2, false>(p, scores, spans, expected);
  run<K, 4, 2, true>(p, scores, spans, expected);
}

}  // namespace

void index_forms() {
  const int ctas = multiprocessors();
  std::vector<unsigned char> codes(size_t{kKeys} * 64), scales(size_t{kKeys} * 4);
  std::vector<float> q(size_t{kQueryRows} * kWidth);
  std::vector<__nv_bfloat16> weight(kQueryRows);
  for (size_t i = 0; i < codes.size(); ++i) codes[i] = static_cast<unsigned char>(hash(i + 77));
  for (size_t i = 0; i < scales.size(); ++i)
    scales[i] = static_cast<unsigned char>(120 + hash(i + 1234567) % 8);
  for (size_t i = 0; i < q.size(); ++i) q[i] = q_value(static_cast<int>(i));
  for (size_t i = 0; i < weight.size(); ++i) weight[i] = __float2bfloat16_rn(gaussian(i));
  Buffer<unsigned char> on_codes(codes.size()), on_scales(scales.size());
  Buffer<float> on_q(q.size()), scores(static_cast<size_t>(ctas) * kQueries * kKeys);
  Buffer<__nv_bfloat16> on_weight(weight.size());
  Buffer<Span> spans(static_cast<size_t>(ctas));
  on_codes.set(codes), on_scales.set(scales), on_q.set(q), on_weight.set(weight);
  const FormParams p{.codes = reinterpret_cast<const uint4*>(on_codes.data),
                     .scales = on_scales.data,
                     .q = on_q.data,
                     .weight = on_weight.data,
                     .tiles = 24 * kKeys / 64,
                     .scores = scores.data,
                     .spans = spans.data};
  const auto expected = form_reference(codes, scales, q, weight);
  run_all<E4m3Keys>(p, scores, spans, expected);
  run_all<Bf16Keys>(p, scores, spans, expected);
  run<E4m3Keys, 3, 2, true>(p, scores, spans, expected);
}

}  // namespace dsv4::micro
