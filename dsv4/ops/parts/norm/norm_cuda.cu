// One CTA per row: a sum over the row, then the output. The row is read twice, the second time from
// L1. Q8 of the output is made in the same pass where its columns fill whole warps.

#include <type_traits>

#include "dsv4/device/launch.cuh"
#include "dsv4/device/math.cuh"
#include "dsv4/device/pack.cuh"
#include "dsv4/device/ptx/griddep.cuh"
#include "dsv4/ops/gemm/gemm.h"
#include "dsv4/ops/gemm/x/columns8.cuh"
#include "dsv4/ops/parts/norm/norm.h"
#include "dsv4/ops/parts/quant/quant.h"

namespace dsv4::norm_kernel::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kRun = 8;  // columns that a thread reads at once

// Where Q8 of the output goes.
struct Q8Rows {
  uint8_t *codes = nullptr, *scales = nullptr;  // null: not wanted
  int64_t codes_stride = 0, scales_stride = 0;

  // Columns i .. i + 7 of row `row`, by all lanes of the warp.
  __device__ void store(int64_t row, int i, const float (&values)[kRun]) const {
    const gemm::CodesOfRun q(gemm::Run::rounded(values));
    *reinterpret_cast<uint2*>(codes + row * codes_stride + i) = q.codes;
    if (i % kActivationGroup == 0) scales[row * scales_stride + i / kActivationGroup] = q.scale;
  }
};

// Threads take runs of kN columns.
template <int kN, class X, class W, class Out>
__global__ void rms_norm(const X* x, int64_t x_stride, const W* weight, Out* out,
                         int64_t out_stride, int d, float eps, Q8Rows q8) {
  ptx::pdl_start();
  __shared__ float sums[kWarp];
  x += blockIdx.x * x_stride;
  out += blockIdx.x * out_stride;
  float sum = 0;
  for (int i = kN * threadIdx.x; i < d; i += kN * kThreads) {
    float values[kN];
    load<kN>(x + i, values);
    for (const float value : values) sum += value * value;
  }
  const float root = 1.f / sqrtf(block_sum(sum, sums) / static_cast<float>(d) + eps);
  for (int i = kN * threadIdx.x; i < d; i += kN * kThreads) {
    float values[kN], weights[kN];
    load<kN>(x + i, values);
    load<kN>(weight + i, weights);
    for (int j = 0; j < kN; ++j) values[j] = values[j] * root * weights[j];
    store<kN>(out + i, values);
    if constexpr (kN == kRun && std::is_same_v<Out, bf16>) {
      if (q8.codes != nullptr) q8.store(blockIdx.x, i, values);
    }
  }
}

__device__ float bf16_step(float x) {
  return round_to_bf16(x);
}

// kStepped: every step in bf16 (RMS0_bf16 of docs/spec/dsv4.md 0.4).
template <bool kStepped, class X, class Out>
__global__ void head_norm(const X* x, int64_t x_stride, Out* out, int64_t out_stride, int d,
                          float eps) {
  ptx::pdl_start();
  __shared__ float sums[kWarp];
  x += blockIdx.x * x_stride;
  out += blockIdx.x * out_stride;
  float sum = 0;
  for (int i = threadIdx.x; i < d; i += kThreads) {
    const float square = to_float(x[i]) * to_float(x[i]);
    sum += kStepped ? bf16_step(square) : square;
  }
  const float mean = block_sum(sum, sums) / static_cast<float>(d);
  const float root =
      kStepped ? bf16_step(1.f / sqrtf(bf16_step(bf16_step(mean) + eps))) : 1.f / sqrtf(mean + eps);
  for (int i = threadIdx.x; i < d; i += kThreads) out[i] = from_float<Out>(to_float(x[i]) * root);
}

// Whether the kernel makes the codes: of bf16, in runs that fill whole warps.
bool makes_codes(const RmsNormArgs& args) {
  return args.codes.rank > 0 && args.out.dtype == DType::kBF16 &&
         args.x.dim(1) % (kRun * kWarp) == 0 && packs(args.x, kRun) && packs(args.weight, kRun) &&
         packs(args.out, kRun) && packs(args.codes, kRun);
}

}  // namespace

void run(const Context& context, const RmsNormArgs& args) {
  const bool codes = makes_codes(args);
  const Q8Rows q8 = codes ? Q8Rows{args.codes.as<uint8_t>(), args.scales.as<uint8_t>(),
                                   args.codes.row_stride(), args.scales.row_stride()}
                          : Q8Rows{};
  with_float_type(args.x.dtype, [&](auto x) {
    with_float_type(args.weight.dtype, [&](auto w) {
      with_float_type(args.out.dtype, [&](auto out) {
        using X = decltype(x);
        using W = decltype(w);
        using Out = decltype(out);
        const bool wide = packs(args.x, kRun) && packs(args.weight, kRun) && packs(args.out, kRun);
        launch(*context.device, "rms_norm",
               wide ? rms_norm<kRun, X, W, Out> : rms_norm<1, X, W, Out>,
               {.grid = args.x.dim(0), .block = kThreads, .pdl = true}, args.x.as<X>(),
               args.x.row_stride(), args.weight.as<W>(), args.out.as<Out>(), args.out.row_stride(),
               args.x.dim(1), args.eps, q8);
      });
    });
  });
  if (args.codes.rank == 0 || codes) return;
  impl_of(quantize_q8, "cuda")
      .run(context, {.x = args.out,
                     .codes = args.codes,
                     .scales = args.scales,
                     .group = static_cast<int>(kActivationGroup)});
}

void run(const Context& context, const HeadNormArgs& args) {
  with_float_type(args.x.dtype, [&](auto x) {
    with_float_type(args.out.dtype, [&](auto out) {
      using X = decltype(x);
      using Out = decltype(out);
      const bool stepped = context.numerics == Numerics::kOfficial;
      launch(*context.device, "head_norm",
             stepped ? head_norm<true, X, Out> : head_norm<false, X, Out>,
             {.grid = args.x.dim(0), .block = kThreads, .pdl = true}, args.x.as<X>(),
             args.x.row_stride(), args.out.as<Out>(), args.out.row_stride(), args.x.dim(1),
             args.eps);
    });
  });
}

}  // namespace dsv4::norm_kernel::cuda
