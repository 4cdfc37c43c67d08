// A thread converts runs of eight columns, several of them at a time: all loads of its runs are
// issued first, and neighboring threads store neighboring runs. Rows that do not consist of aligned
// runs take a kernel with a thread per value, in which neighboring threads share the bytes of codes
// and scales through the cache. Both compute the same bits.

#include <type_traits>

#include "dsv4/base/bits.h"
#include "dsv4/base/divisor.h"
#include "dsv4/device/launch.cuh"
#include "dsv4/device/math.cuh"
#include "dsv4/device/pack.cuh"
#include "dsv4/device/ptx/griddep.cuh"
#include "dsv4/formats/e2m1.h"
#include "dsv4/formats/e4m3.h"
#include "dsv4/formats/kbit.h"
#include "dsv4/formats/ue8m0.h"
#include "dsv4/formats/weight.h"
#include "dsv4/ops/gemm/weights/decode.cuh"
#include "dsv4/ops/parts/dequantize/dequantize.h"

namespace dsv4::dequantize_kernel::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kRun = 8;   // columns that a thread converts at once; they share a scale
constexpr int kRuns = 4;  // runs of a thread, kThreads apart

// A WeightView as a kernel argument.
struct Source {
  const std::byte *data, *scale;
  int64_t data_stride, scale_stride;  // from one row to the next, in elements
  bool f32_scale;
  float scale2;
  int bits;
  const float* codebook;

  explicit Source(const WeightView& w)
      : data(w.data.data),
        scale(w.scale.data),
        data_stride(w.data.row_stride()),
        scale_stride(w.scale.empty() ? 0 : w.scale.row_stride()),
        f32_scale(!w.scale.empty() && w.scale.dtype == DType::kF32),
        scale2(w.scale2),
        bits(w.bits),
        codebook(w.codebook.empty() ? nullptr : w.codebook.as<float>()) {}
  template <class T>
  __device__ T code(int64_t row, int i) const {
    return reinterpret_cast<const T*>(data)[row * data_stride + i];
  }
  template <class T>
  __device__ T scale_at(int64_t row, int i) const {
    return reinterpret_cast<const T*>(scale)[row * scale_stride + i];
  }
};

template <WeightFormat kFormat>
__device__ float value(const Source& w, int64_t row, int column) {
  if constexpr (kFormat == WeightFormat::kF32) {
    return w.code<float>(row, column);
  } else if constexpr (kFormat == WeightFormat::kBF16) {
    return bf16_to_f32(w.code<uint16_t>(row, column));
  } else if constexpr (kFormat == WeightFormat::kF16) {
    return f16_to_f32(w.code<uint16_t>(row, column));
  } else if constexpr (kFormat == WeightFormat::kFp8Block) {
    const int64_t block_row = row / kFp8BlockSize;
    const int block = column / kFp8BlockSize;
    const float scale = w.f32_scale ? w.scale_at<float>(block_row, block)
                                    : ue8m0_to_f32(w.scale_at<uint8_t>(block_row, block));
    return e4m3_to_f32(w.code<uint8_t>(row, column)) * scale;
  } else if constexpr (kFormat == WeightFormat::kMxfp4) {
    return e2m1_to_f32(e2m1_code(w.code<uint8_t>(row, column / 2), column)) *
           ue8m0_to_f32(w.scale_at<uint8_t>(row, column / kMxfp4Group));
  } else if constexpr (kFormat == WeightFormat::kNvfp4) {
    return e2m1_to_f32(e2m1_code(w.code<uint8_t>(row, column / 2), column)) *
           e4m3_to_f32(w.scale_at<uint8_t>(row, column / kNvfp4Group)) * w.scale2;
  } else {
    const int block = column / kKbitBlock;
    const auto* planes = reinterpret_cast<const uint32_t*>(w.data) + row * w.data_stride;
    const uint8_t code = kbit_code(planes + block * w.bits, w.bits, column % kKbitBlock);
    return w.codebook[code] * e4m4_to_f32(w.scale_at<uint8_t>(row, block)) * w.scale2;
  }
}

// grid: [n * segments]; a segment is kThreads columns
template <WeightFormat kFormat, class Out>
__global__ void dequantize_kernel(Source weight, int columns, int segments, Out* out,
                                  int64_t out_stride) {
  ptx::pdl_start();
  const int64_t row = blockIdx.x / segments;
  const int column = static_cast<int>(blockIdx.x % segments) * kThreads + threadIdx.x;
  if (column >= columns) return;
  out[row * out_stride + column] = from_float<Out>(value<kFormat>(weight, row, column));
}

// A run as stored. What depends on a loaded value waits for values(), so that the loads of several
// runs are in flight together.
template <class T>
struct FloatRun {
  Pack<T, kRun> pack;

  __device__ void load(const Source& w, int64_t row, int column) {
    pack = *reinterpret_cast<const Pack<T, kRun>*>(reinterpret_cast<const T*>(w.data) +
                                                   row * w.data_stride + column);
  }
  __device__ void values(const Source&, int, float (&out)[kRun]) const {
#pragma unroll
    for (int i = 0; i < kRun; ++i) out[i] = to_float(pack.value[i]);
  }
};

struct Fp8Run {
  uint2 codes;
  uint32_t scale;  // the bits of an f32 or a UE8M0

  __device__ void load(const Source& w, int64_t row, int column) {
    codes = *reinterpret_cast<const uint2*>(w.data + row * w.data_stride + column);
    const int64_t block_row = row / kFp8BlockSize;
    const int block = column / kFp8BlockSize;
    scale = w.f32_scale ? w.scale_at<uint32_t>(block_row, block)
                        : w.scale_at<uint8_t>(block_row, block);
  }
  __device__ void values(const Source& w, int, float (&out)[kRun]) const {
    gemm::cuda::widen_e4m3x2(codes.x & 0xffffu, out);
    gemm::cuda::widen_e4m3x2(codes.x >> 16, out + 2);
    gemm::cuda::widen_e4m3x2(codes.y & 0xffffu, out + 4);
    gemm::cuda::widen_e4m3x2(codes.y >> 16, out + 6);
    const float factor =
        w.f32_scale ? __uint_as_float(scale) : ue8m0_to_f32(static_cast<uint8_t>(scale));
#pragma unroll
    for (float& v : out) v *= factor;
  }
};

template <WeightFormat kFormat>
struct Fp4Run {
  static constexpr int kGroup = kFormat == WeightFormat::kMxfp4 ? kMxfp4Group : kNvfp4Group;
  uint32_t codes;
  uint8_t scale;

  __device__ void load(const Source& w, int64_t row, int column) {
    codes = *reinterpret_cast<const uint32_t*>(w.data + row * w.data_stride + column / 2);
    scale = w.scale_at<uint8_t>(row, column / kGroup);
  }
  __device__ void values(const Source& w, int, float (&out)[kRun]) const {
    gemm::cuda::widen_e2m1x8(codes, out);
    const float factor = kFormat == WeightFormat::kMxfp4 ? ue8m0_to_f32(scale) : e4m3_to_f32(scale);
#pragma unroll
    for (float& v : out) v *= factor;
    if constexpr (kFormat == WeightFormat::kNvfp4) {
#pragma unroll
      for (float& v : out) v *= w.scale2;
    }
  }
};

struct KbitRun {
  uint32_t planes[kMaxKbit];
  uint8_t scale;

  __device__ void load(const Source& w, int64_t row, int column) {
    const int block = column / kKbitBlock;
    const auto* from =
        reinterpret_cast<const uint32_t*>(w.data) + row * w.data_stride + block * w.bits;
#pragma unroll
    for (int j = 0; j < kMaxKbit; ++j) planes[j] = j < w.bits ? from[j] : 0;
    scale = w.scale_at<uint8_t>(row, block);
  }
  __device__ void values(const Source& w, int column, float (&out)[kRun]) const {
    const float factor = e4m4_to_f32(scale);
#pragma unroll
    for (int i = 0; i < kRun; ++i) {
      const uint8_t code = kbit_code(planes, kMaxKbit, column % kKbitBlock + i);
      out[i] = w.codebook[code] * factor * w.scale2;
    }
  }
};

template <WeightFormat kFormat>
using RunOf = std::conditional_t<
    kFormat == WeightFormat::kF32, FloatRun<float>,
    std::conditional_t<
        kFormat == WeightFormat::kBF16, FloatRun<bf16>,
        std::conditional_t<kFormat == WeightFormat::kF16, FloatRun<f16>,
                           std::conditional_t<kFormat == WeightFormat::kFp8Block, Fp8Run,
                                              std::conditional_t<kFormat == WeightFormat::kKbit,
                                                                 KbitRun, Fp4Run<kFormat>>>>>>;

// runs: of all rows; row_runs: of a row
template <WeightFormat kFormat, class Out>
__global__ void __launch_bounds__(kThreads)
    dequantize_runs_kernel(Source weight, int64_t runs, Divisor row_runs, Out* out,
                           int64_t out_stride) {
  ptx::pdl_start();
  const int64_t first = int64_t{blockIdx.x} * (kThreads * kRuns) + threadIdx.x;
  RunOf<kFormat> loaded[kRuns];
  int64_t row[kRuns];
  int column[kRuns];
#pragma unroll
  for (int i = 0; i < kRuns; ++i) {
    const int64_t run = first + i * kThreads;
    if (run >= runs) continue;
    row[i] = row_runs.divide(static_cast<uint32_t>(run));
    column[i] = static_cast<int>(run - row[i] * row_runs.divisor) * kRun;
    loaded[i].load(weight, row[i], column[i]);
  }
#pragma unroll
  for (int i = 0; i < kRuns; ++i) {
    if (first + i * kThreads >= runs) continue;
    float values[kRun];
    loaded[i].values(weight, column[i], values);
    store<kRun>(out + row[i] * out_stride + column[i], values);
  }
}

// Whether all rows consist of runs that are aligned to their own size, in both tensors.
bool takes_runs(const DequantizeArgs& args) {
  const WeightView& w = args.weight;
  if (w.k == 0 || w.k % kRun != 0 || !packs(args.out, kRun) || w.n * w.k / kRun > INT32_MAX)
    return false;
  if (w.format == WeightFormat::kKbit) return true;  // words of 32 columns, which are aligned
  const bool fp4 = w.format == WeightFormat::kMxfp4 || w.format == WeightFormat::kNvfp4;
  return packs(w.data, fp4 ? kRun / 2 : kRun);
}

template <WeightFormat kFormat, class Out>
void launch_runs(Device& device, const DequantizeArgs& args) {
  const int64_t row_runs = args.weight.k / kRun, runs = args.weight.n * row_runs;
  launch(device, "dequantize", dequantize_runs_kernel<kFormat, Out>,
         {.grid = ceil_div(runs, kThreads * kRuns), .block = kThreads, .pdl = true},
         Source(args.weight), runs, Divisor(row_runs), args.out.as<Out>(), args.out.row_stride());
}

template <WeightFormat kFormat>
void dequantize_of(Device& device, const DequantizeArgs& args) {
  const int64_t segments = ceil_div(args.weight.k, kThreads);
  with_stored_type(args.out.dtype, [&](auto out) {
    using Out = decltype(out);
    if (takes_runs(args)) return launch_runs<kFormat, Out>(device, args);
    launch(device, "dequantize", dequantize_kernel<kFormat, Out>,
           {.grid = args.weight.n * segments, .block = kThreads, .pdl = true}, Source(args.weight),
           args.weight.k, segments, args.out.as<Out>(), args.out.row_stride());
  });
}

}  // namespace

void run(const Context& context, const DequantizeArgs& args) {
  switch (args.weight.format) {
    case WeightFormat::kF32:
      return dequantize_of<WeightFormat::kF32>(*context.device, args);
    case WeightFormat::kBF16:
      return dequantize_of<WeightFormat::kBF16>(*context.device, args);
    case WeightFormat::kF16:
      return dequantize_of<WeightFormat::kF16>(*context.device, args);
    case WeightFormat::kFp8Block:
      return dequantize_of<WeightFormat::kFp8Block>(*context.device, args);
    case WeightFormat::kMxfp4:
      return dequantize_of<WeightFormat::kMxfp4>(*context.device, args);
    case WeightFormat::kNvfp4:
      return dequantize_of<WeightFormat::kNvfp4>(*context.device, args);
    case WeightFormat::kKbit:
      return dequantize_of<WeightFormat::kKbit>(*context.device, args);
  }
}

}  // namespace dsv4::dequantize_kernel::cuda
