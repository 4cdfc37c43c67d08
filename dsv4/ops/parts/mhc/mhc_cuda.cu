// hc_pre and hc_head of mhc.h, two launches each.
//
// mix_kernel: dot products of X_t with the rows of fn. The columns of fn are divided into pieces of
// 64; a warp keeps one piece of kRows rows in registers, three rows per four lanes, and loops over
// tokens. Four pieces make a slice, which one CTA sums and writes: partial sums
// [t, slices, rows + 1], the last of which is the sum of squares. The division of columns depends
// on m * d alone, so a token's bits do not depend on t, and one token already uses m * d / 256
// CTAs.
//
// finish_kernel: one CTA per token. All warps sum the slices; then one computes the gates and
// Sinkhorn while the others mix the streams.

#include <algorithm>

#include "dsv4/base/bits.h"
#include "dsv4/device/launch.cuh"
#include "dsv4/device/pack.cuh"
#include "dsv4/device/ptx/griddep.cuh"
#include "dsv4/ops/parts/mhc/mhc.h"

namespace dsv4::mhc_kernel::cuda {
namespace {

constexpr int kFewStreams = 4;  // the released models' number: half the registers
constexpr int kMaxMixes = kMaxStreams * (2 + kMaxStreams);

constexpr int kQuarter = 16;  // columns per lane
constexpr int kLaneRows = 3;  // rows per lane
constexpr int kRows = kWarp / 4 * kLaneRows;
constexpr int kPiece = 64;  // columns per warp
constexpr int kPieces = 4;  // warps per CTA
constexpr int kSlice = kPiece * kPieces;
constexpr int kPass = 8;      // tokens of a CTA in shared memory
constexpr int kMaxTile = 64;  // tokens per CTA
// Tokens per call of the kernels: their partial sums take 13 MB at 24 mixes of 16384 columns.
constexpr int64_t kMaxTokens = 2048;

constexpr int kFinishWarps = 9;  // one for Sinkhorn, eight for the streams
constexpr int kSumParts = 8;     // threads that share the sum of one mix over the slices
constexpr int kRun = 4;          // columns per thread when rows are aligned to them

// X [t, m, d] viewed as [t, m * d].
template <class T>
struct Streams {
  const T* data;
  int64_t token_stride, stream_stride;
  int m, d;

  explicit Streams(const ConstTensorView& x)
      : data(x.as<T>()),
        token_stride(x.stride[0]),
        stream_stride(x.stride[1]),
        m(static_cast<int>(x.dim(1))),
        d(static_cast<int>(x.dim(2))) {}
  __device__ int width() const { return m * d; }
  __device__ int64_t offset(int column) const { return column / d * stream_stride + column % d; }
};

// w: columns [begin, begin + kQuarter) of one row of fn, zero past its end
template <int kWide>
__device__ void load_quarter(const float* row, int begin, int width, float (&w)[kQuarter]) {
#pragma unroll
  for (int c = 0; c < kQuarter; c += kWide) {
    if (begin + c < width) {
      load<kWide>(row + begin + c, w + c);
    } else {
#pragma unroll
      for (int j = 0; j < kWide; ++j) w[c + j] = 0;
    }
  }
}

// A lane's columns of a piece for the tokens of a pass. They are loaded while the previous pass is
// summed and converted only when they are stored to shared memory, so nothing waits for the loads
// earlier.
template <class T>
struct PassColumns {
  T value[kPass][2];  // columns lane and lane + 32

  // Zero where a token or a column does not exist. from: offsets of the two columns in a token
  __device__ void load(const T* x, int64_t token_stride, const int64_t (&from)[2],
                       const bool (&has)[2], int count) {
#pragma unroll
    for (int i = 0; i < kPass; ++i) {
#pragma unroll
      for (int j = 0; j < 2; ++j)
        value[i][j] = i < count && has[j] ? x[i * token_stride + from[j]] : from_float<T>(0.f);
    }
  }
  __device__ void share(float (*out)[kPiece], int lane) const {
#pragma unroll
    for (int i = 0; i < kPass; ++i) {
#pragma unroll
      for (int j = 0; j < 2; ++j) out[i][lane + j * kWarp] = to_float(value[i][j]);
    }
  }
};

struct MixSums {
  float dot[kPieces][kPass][kRows];
  float square[kPieces][kPass];
};

// One token: dot products of a lane's quarter of the piece with its rows, and the sum of squares,
// added over the four quarters.
__device__ void sum_token(const float* columns, const float (&w)[kLaneRows][kQuarter], int lane,
                          float* mixes, float* square) {
  float sum[kLaneRows + 1] = {};
#pragma unroll
  for (int c = 0; c < kQuarter; c += 4) {
    float v[4];
    load<4>(columns + lane % 4 * kQuarter + c, v);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
#pragma unroll
      for (int r = 0; r < kLaneRows; ++r) sum[r] = __fmaf_rn(v[j], w[r][c + j], sum[r]);
      sum[kLaneRows] = __fmaf_rn(v[j], v[j], sum[kLaneRows]);
    }
  }
#pragma unroll
  for (int r = 0; r <= kLaneRows; ++r) {
    for (int step = 1; step < 4; step *= 2) sum[r] += __shfl_xor_sync(~0u, sum[r], step);
  }
  if (lane % 4 != 0) return;
#pragma unroll
  for (int r = 0; r < kLaneRows; ++r) mixes[lane / 4 * kLaneRows + r] = sum[r];
  if (lane == 0) *square = sum[kLaneRows];
}

// Sums the pieces of a slice in order and stores them. out: [tokens, rows + 1] at token_stride
__device__ void store_slice(const MixSums& sums, int tokens, int first_row, int rows, float* out,
                            int64_t token_stride) {
  const int count = min(kRows, rows - first_row);
  for (int i = threadIdx.x; i < tokens * kRows; i += kPieces * kWarp) {
    const int token = i / kRows, row = i % kRows;
    if (row >= count) continue;
    float sum = 0;
    for (int p = 0; p < kPieces; ++p) sum += sums.dot[p][token][row];
    out[token * token_stride + first_row + row] = sum;
  }
  if (first_row == 0 && static_cast<int>(threadIdx.x) < tokens) {
    float sum = 0;
    for (int p = 0; p < kPieces; ++p) sum += sums.square[p][threadIdx.x];
    out[threadIdx.x * token_stride + rows] = sum;
  }
}

// grid: [slices, tokens / tile, rows / kRows]. partial: [t, slices, rows + 1]
template <int kWide, class T>
__global__ void __launch_bounds__(kPieces* kWarp)
    mix_kernel(Streams<T> x, int t, int tile, const float* fn, int64_t fn_stride, int rows,
               float* partial) {
  ptx::pdl_start();
  __shared__ alignas(16) float columns[kPieces][kPass][kPiece];
  __shared__ MixSums sums;
  const int warp = static_cast<int>(threadIdx.x) / kWarp,
            lane = static_cast<int>(threadIdx.x) % kWarp;
  const int slices = static_cast<int>(gridDim.x), first_row = static_cast<int>(blockIdx.z) * kRows;
  const int begin = static_cast<int>(blockIdx.x) * kSlice + warp * kPiece, width = x.width();
  float w[kLaneRows][kQuarter];
#pragma unroll
  for (int r = 0; r < kLaneRows; ++r) {  // lanes without a row repeat the last one
    const int row = min(first_row + lane / 4 * kLaneRows + r, rows - 1);
    load_quarter<kWide>(fn + row * fn_stride, begin + lane % 4 * kQuarter, width, w[r]);
  }

  const bool has[2] = {begin + lane < width, begin + lane + kWarp < width};
  const int64_t from[2] = {x.offset(begin + lane), x.offset(begin + lane + kWarp)};
  const int64_t token_stride = int64_t{slices} * (rows + 1);
  const int first = static_cast<int>(blockIdx.y) * tile, end = min(t, first + tile);
  PassColumns<T> own;
  own.load(x.data + first * x.token_stride, x.token_stride, from, has, end - first);
  for (int token = first; token < end; token += kPass) {
    const int count = min(kPass, end - token);
    own.share(columns[warp], lane);
    __syncwarp();
    own.load(x.data + (token + kPass) * x.token_stride, x.token_stride, from, has,
             end - token - kPass);
    const auto sum = [&](int i) {
      sum_token(columns[warp][i], w, lane, sums.dot[warp][i], &sums.square[warp][i]);
    };
    if (count == kPass) {  // unrolled, so that tokens overlap
#pragma unroll
      for (int i = 0; i < kPass; ++i) sum(i);
    } else {
      for (int i = 0; i < count; ++i) sum(i);
    }
    __syncthreads();
    store_slice(sums, count, first_row, rows,
                partial + token * token_stride + blockIdx.x * int64_t{rows + 1}, token_stride);
    __syncthreads();
  }
}

__device__ float sigmoid(float x) {
  return 1.f / (1.f + expf(-x));
}

// 1/x within an ulp. A full division would take longer than the rest of Sinkhorn.
__device__ float reciprocal(float x) {
  return __fdividef(1.f, x);
}

// docs/spec/dsv4.md 8.2 by kMax lanes, each with a row of b in registers; elements beyond m are
// zero and stay zero.
template <int kMax>
__device__ void sinkhorn(float (&b)[kMax], int row, int m, int iters, float eps) {
  const auto row_step = [&](float extra) {
    float sum = extra;
#pragma unroll
    for (int k = 0; k < kMax; ++k) sum += b[k];
    const float inverse = row < m ? reciprocal(sum) : 0.f;
#pragma unroll
    for (int k = 0; k < kMax; ++k) b[k] *= inverse;
  };
  const auto column_step = [&] {
    float sum[kMax];
#pragma unroll
    for (int k = 0; k < kMax; ++k) sum[k] = b[k];
#pragma unroll
    for (int step = kMax / 2; step > 0; step /= 2) {
#pragma unroll
      for (int k = 0; k < kMax; ++k) sum[k] += __shfl_xor_sync(~0u, sum[k], step);
    }
#pragma unroll
    for (int k = 0; k < kMax; ++k) b[k] *= k < m ? reciprocal(sum[k] + eps) : 0.f;
  };
  row_step(0);
#pragma unroll
  for (int k = 0; k < kMax; ++k) b[k] += row < m && k < m ? eps : 0.f;
  column_step();
  for (int i = 1; i < iters; ++i) {
    row_step(eps);
    column_step();
  }
}

// The gates that are computed from a token's mixes.
struct Gates {
  const float *base, *scale;
  float norm_eps, hc_eps;
  int sinkhorn_iters;
  float *post, *comb;  // [t, m], [t, m, m]; null in hc_head
  int64_t post_stride, comb_stride, comb_row_stride;
};

// One warp. mix: [m * (2 + m)]
template <int kMax>
__device__ void post_and_comb(const Gates& gates, const float* mix, int m, int64_t token) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp, row = lane % kMax;
  if (lane < m) {
    gates.post[token * gates.post_stride + lane] =
        2.f * sigmoid(mix[m + lane] * gates.scale[1] + gates.base[m + lane]);
  }
  float b[kMax], largest = -INFINITY;
#pragma unroll
  for (int k = 0; k < kMax; ++k) {
    const int i = 2 * m + m * row + k;
    b[k] = row < m && k < m ? mix[i] * gates.scale[2] + gates.base[i] : -INFINITY;
    largest = fmaxf(largest, b[k]);
  }
#pragma unroll
  for (int k = 0; k < kMax; ++k) b[k] = row < m && k < m ? expf(b[k] - largest) : 0.f;
  sinkhorn<kMax>(b, row, m, gates.sinkhorn_iters, gates.hc_eps);
  if (lane >= m) return;
  float* comb = gates.comb + token * gates.comb_stride + lane * gates.comb_row_stride;
#pragma unroll
  for (int k = 0; k < kMax; ++k) {
    if (k < m) comb[k] = b[k];
  }
}

// sums: [n] over all slices of partial: [slices, n]. Part p adds every kSumParts-th slice from p
// on.
__device__ void sum_slices(const float* partial, int slices, int n,
                           float (&parts)[kSumParts][kMaxMixes + 1], float* sums) {
  constexpr int kThreads = kFinishWarps * kWarp;
  for (int i = threadIdx.x; i < kSumParts * n; i += kThreads) {
    const int part = i / n, column = i % n;
    float sum = 0;
#pragma unroll 8
    for (int s = part; s < slices; s += kSumParts) sum += partial[s * n + column];
    parts[part][column] = sum;
  }
  __syncthreads();
  for (int i = threadIdx.x; i < n; i += kThreads) {
    float sum = 0;
    for (int part = 0; part < kSumParts; ++part) sum += parts[part][i];
    sums[i] = sum;
  }
}

// partial: [t, slices, rows + 1]. grid: [t]. kMax: maximum number of streams
template <int kMax, int kWide, class T, class Out>
__global__ void __launch_bounds__(kFinishWarps* kWarp)
    finish_kernel(Streams<T> x, const float* partial, int slices, int rows, Gates gates, Out* out,
                  int64_t out_stride) {
  ptx::pdl_start();
  __shared__ float parts[kSumParts][kMaxMixes + 1], mix[kMaxMixes + 1], pre[kMaxStreams];
  const int64_t token = blockIdx.x;
  sum_slices(partial + token * slices * (rows + 1), slices, rows + 1, parts, mix);
  __syncthreads();
  const float mean = mix[rows] / static_cast<float>(x.width());
  const float rho = 1.f / sqrtf(mean + gates.norm_eps);
  __syncthreads();
  for (int i = threadIdx.x; i < rows; i += kFinishWarps * kWarp) {
    mix[i] *= rho;
    if (i < x.m) pre[i] = sigmoid(mix[i] * gates.scale[0] + gates.base[i]) + gates.hc_eps;
  }
  __syncthreads();
  if (threadIdx.x < kWarp) {
    if (gates.post != nullptr) post_and_comb<kMax>(gates, mix, x.m, token);
    return;
  }
  const T* from = x.data + token * x.token_stride;
  constexpr int kThreads = (kFinishWarps - 1) * kWarp;
  for (int c = (static_cast<int>(threadIdx.x) - kWarp) * kWide; c < x.d; c += kThreads * kWide) {
    float sum[kWide] = {};
    float v[kMax][kWide];
#pragma unroll
    for (int j = 0; j < kMax; ++j) {
      if (j < x.m) load<kWide>(from + j * x.stream_stride + c, v[j]);
    }
#pragma unroll
    for (int j = 0; j < kMax; ++j) {
      if (j >= x.m) continue;
#pragma unroll
      for (int i = 0; i < kWide; ++i) sum[i] = __fmaf_rn(pre[j], v[j][i], sum[i]);
    }
    store<kWide>(out + token * out_stride + c, sum);
  }
}

// The common arguments of hc_pre and hc_head, for the tokens of one call of the kernels.
struct MixArgs {
  ConstTensorView streams, fn;
  TensorView out;
  Gates gates;
};

void mix(Device& device, const MixArgs& args) {
  const int64_t t = args.streams.dim(0), rows = args.fn.dim(0), width = args.fn.dim(1);
  const int64_t slices = ceil_div(width, kSlice);
  const Scratch::Scope scope(device.workspace());
  const TensorView partial = device.workspace().take(DType::kF32, {t, slices, rows + 1});
  // With few tokens, many CTAs; with many tokens, fn is read once per tile.
  const int64_t tile = std::clamp<int64_t>(t / 16, 1, kMaxTile);
  with_float_type(args.streams.dtype, [&](auto element) {
    using T = decltype(element);
    const Streams<T> x(args.streams);
    launch(device, "hc_mix", packs(args.fn, kRun) ? mix_kernel<kRun, T> : mix_kernel<1, T>,
           {.grid = slices,
            .block = kPieces * kWarp,
            .grid_y = ceil_div(t, tile),
            .grid_z = ceil_div(rows, kRows),
            .pdl = true},
           x, t, tile, args.fn.as<float>(), args.fn.row_stride(), rows, partial.as<float>());
    with_float_type(args.out.dtype, [&](auto out) {
      using Out = decltype(out);
      const bool wide = packs(args.streams, kRun) && packs(args.out, kRun);
      const auto finish = x.m <= kFewStreams ? (wide ? finish_kernel<kFewStreams, kRun, T, Out>
                                                     : finish_kernel<kFewStreams, 1, T, Out>)
                                             : (wide ? finish_kernel<kMaxStreams, kRun, T, Out>
                                                     : finish_kernel<kMaxStreams, 1, T, Out>);
      launch(device, "hc_finish", finish, {.grid = t, .block = kFinishWarps * kWarp, .pdl = true},
             x, partial.as<float>(), slices, rows, args.gates, args.out.as<Out>(),
             args.out.row_stride());
    });
  });
}

}  // namespace

void run(const Context& context, const HcPreArgs& args) {
  const int64_t t = args.streams.dim(0);
  for (int64_t begin = 0; begin < t; begin += kMaxTokens) {
    const int64_t end = std::min(t, begin + kMaxTokens);
    const TensorView post = args.post.slice(0, begin, end), comb = args.comb.slice(0, begin, end);
    mix(*context.device, {.streams = args.streams.slice(0, begin, end),
                          .fn = args.fn,
                          .out = args.out.slice(0, begin, end),
                          .gates = {.base = args.base.as<float>(),
                                    .scale = args.scale.as<float>(),
                                    .norm_eps = args.norm_eps,
                                    .hc_eps = args.hc_eps,
                                    .sinkhorn_iters = args.sinkhorn_iters,
                                    .post = post.as<float>(),
                                    .comb = comb.as<float>(),
                                    .post_stride = post.row_stride(),
                                    .comb_stride = comb.stride[0],
                                    .comb_row_stride = comb.stride[1]}});
  }
}

void run(const Context& context, const HcHeadArgs& args) {
  const int64_t t = args.streams.dim(0);
  for (int64_t begin = 0; begin < t; begin += kMaxTokens) {
    const int64_t end = std::min(t, begin + kMaxTokens);
    mix(*context.device, {.streams = args.streams.slice(0, begin, end),
                          .fn = args.fn,
                          .out = args.out.slice(0, begin, end),
                          .gates = {.base = args.base.as<float>(),
                                    .scale = args.scale.as<float>(),
                                    .norm_eps = args.norm_eps,
                                    .hc_eps = args.hc_eps}});
  }
}

}  // namespace dsv4::mhc_kernel::cuda
