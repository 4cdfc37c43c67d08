// One thread per value; neighboring threads share the bytes of codes and scales through the cache.

#include "dsv4/base/bits.h"
#include "dsv4/device/launch.cuh"
#include "dsv4/device/math.cuh"
#include "dsv4/device/ptx/griddep.cuh"
#include "dsv4/formats/e2m1.h"
#include "dsv4/formats/e4m3.h"
#include "dsv4/formats/kbit.h"
#include "dsv4/formats/ue8m0.h"
#include "dsv4/formats/weight.h"
#include "dsv4/ops/parts/dequantize/dequantize.h"

namespace dsv4::dequantize_kernel::cuda {
namespace {

constexpr int kThreads = 256;

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

template <WeightFormat kFormat>
void dequantize_of(Device& device, const DequantizeArgs& args) {
  const int64_t segments = ceil_div(args.weight.k, kThreads);
  with_stored_type(args.out.dtype, [&](auto out) {
    using Out = decltype(out);
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
