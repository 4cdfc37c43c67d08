// 6. At what rate does the first launch of hc_boundary for many tokens (design 3.1, post_mix) move
//    its bytes? A CTA takes kTokens tokens x 128 columns x 4 streams:
//
//      X'[t, r, d] = bf16(sum_s comb[t, r, s] X[t, s, d] + post[t, r] y[t, d])
//      dots[t, i]  = sum over its 512 values of X'[t, r, d] fn[i, r, d],  i < 24; fn = 3 bf16 terms
//      partials [T, 32, 25]: the dots and the sum of squares
//
//    T = 4,096, D = 4,096. Floor: 315 MB at copy speed (4.3 TB/s). Prediction >= 3.9 TB/s. If not:
//    tiles of 128 tokens, measured here too.
//
// Not measured: sums over slots, the second launch.

#include "bench/micro/post_mix.cuh"

namespace dsv4::micro {
namespace {

// One token, 8 columns of all streams; returns the sum of squares of what it stores.
__device__ inline float mix_chunk(const MixParams& p, int t, int column, int in_tile, int chunk,
                                  unsigned char* tile) {
  const int64_t at = int64_t{t} * kStreams * kD + column;
  uint4 in[kStreams];
#pragma unroll
  for (int s = 0; s < kStreams; ++s)
    in[s] = __ldcs(reinterpret_cast<const uint4*>(p.x + at + s * kD));
  const uint4 y_in = __ldcs(reinterpret_cast<const uint4*>(p.y + int64_t{t} * kD + column));
  float4 combs[kStreams];
#pragma unroll
  for (int r = 0; r < kStreams; ++r)
    combs[r] = *reinterpret_cast<const float4*>(p.comb + t * 16 + r * 4);
  return mix_loaded(in, y_in, combs, *reinterpret_cast<const float4*>(p.post + t * 4), p.out + at,
                    in_tile, chunk, tile);
}

// Warp w multiplies values 64 w .. 64 w + 63 of all tokens by fn.
template <int kTokens_, bool kPrepared>
__device__ inline void dot_slice(const MixParams& p, const unsigned char* tile,
                                 float (&sums)[kTokens_ / 16][3][4]) {
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int first = warp * 64, stream = first / kTileColumns;
  const float* const fn = p.fn + stream * kD +
                          static_cast<int>(blockIdx.x) % kTiles * kTileColumns +
                          first % kTileColumns + lane % 4 * 2;
#pragma unroll
  for (int step = 0; step < 4; ++step) {
    uint32_t b[3][2][3];  // of 8 dots, half of k16, term
#pragma unroll
    for (int n = 0; n < 3; ++n) {
      if constexpr (kPrepared) {
        const uint2* const from =
            p.prepared + lane +
            (static_cast<int>(blockIdx.x) % kTiles * 32 + warp * 4 + step) * 288 + n * 96;
#pragma unroll
        for (int term = 0; term < 3; ++term) {
          const uint2 two = from[term * 32];
          b[n][0][term] = two.x, b[n][1][term] = two.y;
        }
        continue;
      }
      const float* const row = fn + int64_t{n * 8 + lane / 4} * kStreams * kD + step * 16;
      split(*reinterpret_cast<const float2*>(row), b[n][0]);
      split(*reinterpret_cast<const float2*>(row + 8), b[n][1]);
    }
#pragma unroll
    for (int m = 0; m < kTokens_ / 16; ++m) {
      uint32_t a[4];
      const int t = m * 16 + lane % 16;
      ptx::ldmatrix_x4(a, tile + mix_at(t, first / 8 + step * 2 + lane / 16));
#pragma unroll
      for (int n = 0; n < 3; ++n) {
#pragma unroll
        for (int term = 0; term < 3; ++term)
          ptx::mma_m16n8k16_bf16(sums[m][n], a, b[n][0][term], b[n][1][term]);
      }
    }
  }
}

template <int kTokens_, bool kPrepared>
__global__ void __launch_bounds__(kMixThreads, kTokens_ == 128  ? 1
                                               : kTokens_ == 64 ? 2
                                                                : 3)
    mix_kernel(const __grid_constant__ MixParams p) {
  extern __shared__ __align__(1024) unsigned char tile[];  // [kTokens_, 512] bf16
  float* const squares = reinterpret_cast<float*>(tile + kTokens_ * kValues * 2);
  const int thread = static_cast<int>(threadIdx.x), chunk = thread % 16;
  const int first_token = static_cast<int>(blockIdx.x) / kTiles * kTokens_;
  const int tile_index = static_cast<int>(blockIdx.x) % kTiles;
#pragma unroll 2
  for (int t = thread / 16; t < kTokens_; t += kMixThreads / 16) {
    float sum =
        mix_chunk(p, first_token + t, tile_index * kTileColumns + chunk * 8, t, chunk, tile);
#pragma unroll
    for (int step = 8; step > 0; step /= 2) sum += __shfl_xor_sync(~0u, sum, step);
    if (chunk == 0) squares[t] = sum;
  }
  __syncthreads();
  float sums[kTokens_ / 16][3][4] = {};
  dot_slice<kTokens_, kPrepared>(p, tile, sums);
  __syncthreads();
  // Sums of the warps in place of the tile: [warp][token][24]
  auto* const partial = reinterpret_cast<float*>(tile);
  const int warp = thread / 32, lane = thread % 32;
#pragma unroll
  for (int m = 0; m < kTokens_ / 16; ++m) {
#pragma unroll
    for (int n = 0; n < 3; ++n) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int t = m * 16 + lane / 4 + 8 * h;
        *reinterpret_cast<float2*>(partial + (warp * kTokens_ + t) * kDots + n * 8 +
                                   lane % 4 * 2) = {sums[m][n][2 * h], sums[m][n][2 * h + 1]};
      }
    }
  }
  __syncthreads();
  for (int i = thread; i < kTokens_ * kPartials; i += kMixThreads) {
    const int t = i / kPartials, dot = i % kPartials;
    float sum = dot == kDots ? squares[t] : 0;
    if (dot < kDots) {
#pragma unroll
      for (int w = 0; w < kMixWarps; ++w) sum += partial[(w * kTokens_ + t) * kDots + dot];
    }
    p.partials[int64_t{first_token + t} * p.token_stride + int64_t{tile_index} * p.tile_stride +
               dot] = sum;
  }
}

struct MixData {
  Buffer<__nv_bfloat16> x{size_t{kT} * kStreams * kD}, y{size_t{kT} * kD}, out{x.count};
  Buffer<float> comb{size_t{kT} * 16}, post{size_t{kT} * 4}, fn{size_t{kDots} * kStreams * kD};
  Buffer<float> partials{size_t{kT} * kTiles * kPartials};
  Buffer<uint2> prepared{size_t{kTiles} * 8 * 4 * 9 * 32};

  MixData() {
    random_x<<<1024, 256>>>(x.data, static_cast<int64_t>(x.count));
    random_x<<<1024, 256>>>(y.data, static_cast<int64_t>(y.count));
    random_x<<<64, 256>>>(comb.data, static_cast<int64_t>(comb.count));
    random_x<<<64, 256>>>(post.data, static_cast<int64_t>(post.count));
    random_x<<<64, 256>>>(fn.data, static_cast<int64_t>(fn.count));
    prepare_fn<<<kTiles * 12, 256>>>(fn.data, prepared.data);
    MICRO_CUDA(cudaGetLastError());
    MICRO_CUDA(cudaDeviceSynchronize());
  }
  double bytes() const { return 4.0 * x.count + 2.0 * y.count + 4.0 * partials.count; }
  // by_tile: partials [32, kT, 25], so that a CTA's sums are contiguous
  MixParams params(bool by_tile) const {
    return {.x = x.data,
            .y = y.data,
            .comb = comb.data,
            .post = post.data,
            .fn = fn.data,
            .out = out.data,
            .partials = partials.data,
            .token_stride = by_tile ? kPartials : kTiles * kPartials,
            .tile_stride = by_tile ? kT * kPartials : kPartials,
            .prepared = prepared.data};
  }
};

// X' of some tokens (a), and all sums of these tokens from the stored X' (b).
void check_mix(const MixData& data, bool by_tile, double& mixed_error, double& dots_error) {
  const auto fn = data.fn.host();
  std::vector<float> mixed, sums;
  std::vector<double> mixed_expected, sums_expected;
  for (const int t : {0, 63, 64, 1000, kT - 1}) {
    const size_t row = static_cast<size_t>(t) * kStreams * kD;
    const auto x = data.x.host(row, kStreams * kD), out = data.out.host(row, kStreams * kD);
    const auto y = data.y.host(static_cast<size_t>(t) * kD, kD);
    const auto comb = data.comb.host(static_cast<size_t>(t) * 16, 16);
    const auto post = data.post.host(static_cast<size_t>(t) * 4, 4);
    for (size_t tile = 0; tile < kTiles; ++tile) {
      const MixParams p = data.params(by_tile);
      const auto part = data.partials.host(
          static_cast<size_t>(t) * p.token_stride + tile * static_cast<size_t>(p.tile_stride),
          kPartials);
      sums.insert(sums.end(), part.begin(), part.end());
    }
    for (size_t i = 0; i < out.size(); ++i) {
      const size_t r = i / kD, d = i % kD;
      double sum = double{post[r]} * static_cast<float>(y[d]);
      for (size_t s = 0; s < 4; ++s)
        sum += double{comb[r * 4 + s]} * static_cast<float>(x[s * kD + d]);
      mixed.push_back(static_cast<float>(out[i]));
      mixed_expected.push_back(sum);
    }
    for (size_t tile = 0; tile < kTiles; ++tile) {
      for (size_t i = 0; i < kPartials; ++i) {
        double sum = 0;
        for (size_t v = 0; v < kValues; ++v) {
          const size_t at = v / kTileColumns * kD + tile * kTileColumns + v % kTileColumns;
          const double value = static_cast<float>(out[at]);
          sum += value * (i < kDots ? double{fn[i * kStreams * kD + at]} : value);
        }
        sums_expected.push_back(sum);
      }
    }
  }
  mixed_error = relative_error(mixed, mixed_expected);
  dots_error = relative_error(sums, sums_expected);
}

// Times 20 launches and checks what they leave.
void time_mix(const MixData& data, const std::string& name, bool by_tile,
              const std::function<void()>& launch) {
  MICRO_CUDA(cudaMemset(data.out.data, 0xff, data.out.count * 2));
  MICRO_CUDA(cudaMemset(data.partials.data, 0xff, data.partials.count * 4));
  constexpr int kLaunches = 20;
  const Timing t = measure(
      [&] {
        for (int i = 0; i < kLaunches; ++i) launch();
      },
      nullptr);
  double mixed = 0, dots = 0;
  check_mix(data, by_tile, mixed, dots);
  Line line("6", "post_mix_" + name);
  line.number("tb_s", data.bytes() * kLaunches / t.us * 1e-6).number("us", t.us / kLaunches);
  line.expected(3.9).number("error_of_streams", mixed);
  line.check(std::max(dots, mixed > 3e-3 ? 1.0 : 0.0), 1e-5);
}

template <int kTokens_, bool kPrepared = false>
void run(const MixData& data, bool by_tile = false) {
  constexpr int kShared = kTokens_ * (kValues * 2 + 4);
  static_assert(kMixWarps * kTokens_ * kDots * 4 <= kTokens_ * kValues * 2);
  const auto kernel = mix_kernel<kTokens_, kPrepared>;
  MICRO_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kShared));
  const std::string form = kPrepared ? "_prepared" : by_tile ? "_by_tile" : "";
  time_mix(data, std::to_string(kTokens_) + "_tokens" + form, by_tile,
           [&] { kernel<<<kT / kTokens_ * kTiles, kMixThreads, kShared>>>(data.params(by_tile)); });
}

void run_ring(const MixData& data, int groups) {
  MICRO_CUDA(cudaFuncSetAttribute(mix_ring_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  sizeof(MixRing)));
  time_mix(data, "persistent_" + std::to_string(groups * kTiles) + "_ctas", true, [&] {
    mix_ring_kernel<<<groups * kTiles, MixRing::kThreads, sizeof(MixRing)>>>(data.params(true),
                                                                             kT / groups);
  });
}

}  // namespace

void post_mix() {
  const MixData data;
  const size_t bytes = data.x.count * 2;
  const Timing copy = measure(
      [&] {
        for (int i = 0; i < 20; ++i)
          MICRO_CUDA(cudaMemcpyAsync(data.out.data, data.x.data, bytes, cudaMemcpyDeviceToDevice));
      },
      nullptr);
  Line("6", "copy").number("tb_s", 2.0 * bytes * 20 / copy.us * 1e-6).number("us", copy.us / 20);
  run<64>(data);
  run<128>(data);
  run<32>(data);
  run<32>(data, true);
  run<32, true>(data, true);
  run<64, true>(data, true);
  run_ring(data, 4);
}

}  // namespace dsv4::micro
