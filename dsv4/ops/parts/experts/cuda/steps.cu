#include "dsv4/ops/parts/experts/cuda/steps.h"

#include <cmath>

#include "dsv4/base/divisor.h"
#include "dsv4/device/launch.cuh"
#include "dsv4/device/math.cuh"
#include "dsv4/device/pack.cuh"
#include "dsv4/device/ptx/griddep.cuh"
#include "dsv4/formats/quant_group.h"
#include "dsv4/ops/gemm/epilogue/swiglu.cuh"
#include "dsv4/ops/gemm/x/columns8.cuh"

namespace dsv4 {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / kWarp;
constexpr int kGroup = 128, kLaneColumns = kGroup / kWarp;

// Quantizes a group of 128 in one warp: lane l holds columns l, l + 32, ...; columns past the end
// are 0. NaN does not affect the scale (formats/quant_group.h).
__device__ void quantize_group(float (&v)[kLaneColumns]) {
  float largest = 0;
  for (const float x : v) largest = fmaxf(largest, fabsf(x));  // fmaxf drops NaN
  const uint8_t scale = q8_scale(warp_max(largest));
  const float inverse = inverse_scale(scale), factor = ue8m0_to_f32(scale);
  for (float& x : v) x = e4m3_to_f32(f32_to_e4m3(x * inverse)) * factor;
}

// Each warp processes one group of a row: the grid has rows along x and kWarps groups per CTA along
// y.
struct Group {
  int64_t row;
  int first;  // column of lane 0
};
__device__ Group this_group() {
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  return {blockIdx.x, (static_cast<int>(blockIdx.y) * kWarps + warp) * kGroup + lane};
}
int64_t group_blocks(int64_t columns) {
  return ceil_div(ceil_div(columns, kGroup), kWarps);
}

template <class X>
__global__ void quantize_kernel(const X* x, int64_t x_stride, bf16* out, int d) {
  ptx::pdl_start();
  const auto [row, first] = this_group();
  float v[kLaneColumns] = {};
  for (int i = 0; i < kLaneColumns; ++i)
    if (first + i * kWarp < d) v[i] = to_float(x[row * x_stride + first + i * kWarp]);
  quantize_group(v);
  for (int i = 0; i < kLaneColumns; ++i)
    if (first + i * kWarp < d) out[row * d + first + i * kWarp] = from_float<bf16>(v[i]);
}

template <class X, class H, GateActivation kActivation>
__global__ void swiglu_kernel(const X* gate_up, const float* weight, H* hidden,
                              int64_t hidden_stride, int inner, float limit, bool quantize,
                              const __grid_constant__ Mirrors mirrors) {
  const auto gated = [](float gate, float up, float factor, float most) {
    if constexpr (kActivation == GateActivation::kSilu) return swiglu(gate, up, factor, most);
    return gelu_gated(kActivation == GateActivation::kGeluTanh, gate, up, factor, most);
  };
  ptx::pdl_start();
  const auto [pair, first] = this_group();
  const X *gate = gate_up + pair * 2 * inner, *up = gate + inner;
  const float factor = weight == nullptr ? 1.f : weight[pair];
  float v[kLaneColumns] = {};
  for (int i = 0; i < kLaneColumns; ++i) {
    const int c = first + i * kWarp;
    if (c < inner)  // rounded to the dtype of hidden
      v[i] = to_float(from_float<H>(gated(to_float(gate[c]), to_float(up[c]), factor, limit)));
  }
  if (quantize) quantize_group(v);
  for (int i = 0; i < kLaneColumns; ++i) {
    const int c = first + i * kWarp;
    if (c < inner) store_mirrored(hidden + pair * hidden_stride + c, from_float<H>(v[i]), mirrors);
  }
}

// A lane has 8 columns, 16 lanes have a group. runs: of all rows; row_runs: of a row
__global__ void __launch_bounds__(kThreads)
    swiglu_q8_kernel(const bf16* gate_up, int64_t runs, Divisor row_runs, float limit,
                     uint8_t* codes, uint8_t* scales) {
  ptx::pdl_start();
  const int64_t at = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  float h[gemm::kRun] = {};
  if (at < runs) {
    const int64_t row = row_runs.divide(static_cast<uint32_t>(at));
    const int64_t inner = int64_t{row_runs.divisor} * gemm::kRun;
    const bf16* const from = gate_up + (at + row * row_runs.divisor) * gemm::kRun;
    float gate[gemm::kRun], up[gemm::kRun];
    gemm::Run::load(from).widen(gate);
    gemm::Run::load(from + inner).widen(up);
#pragma unroll
    for (int i = 0; i < gemm::kRun; ++i) h[i] = swiglu(gate[i], up[i], 1.f, limit);
  }
  const gemm::CodesOfRun q(gemm::Run::rounded(h));  // by all lanes of the warp
  if (at >= runs) return;
  *reinterpret_cast<uint2*>(codes + at * gemm::kRun) = q.codes;
  if (at % gemm::kRuns == 0) scales[at / gemm::kRuns] = q.scale;
}

// The pairs of a token (CombineStep).
struct PairsOfToken {
  const int32_t *pair_of, *ids;
  int64_t id_stride;
  int slots, num_ids;

  // The pair of slot i of token t, and how many of the token's pairs come before it.
  __device__ int pair(int64_t t, int i) const {
    if (ids != nullptr) return static_cast<int>(t) * slots + i;
    return pair_of == nullptr ? static_cast<int>(t) : pair_of[t * slots + i];
  }
  __device__ int rank(int64_t t, int i) const {
    int rank = 0;
    if (ids != nullptr) {
      const int own = id(t, i);
      for (int j = 0; j < slots; ++j) rank += id(t, j) < own || (id(t, j) == own && j < i);
    } else if (pair_of != nullptr) {  // pairs are distinct numbers
      for (int j = 0; j < slots; ++j) rank += pair(t, j) < pair(t, i);
    }
    return rank;
  }

 private:
  __device__ int id(int64_t t, int i) const {
    const int given = ids[t * id_stride + i];
    return given >= 0 && given < num_ids ? given : 0;
  }
};

// Each thread combines kRun columns of a token. shared: the token's pairs, sorted
template <int kRun, class Y, class Addend>
__global__ void __launch_bounds__(kThreads)
    combine_kernel(const Y* y, int64_t y_stride, PairsOfToken of_token, bool add,
                   const Addend* addend, int64_t addend_stride, float* acc, int64_t acc_stride,
                   int d, const __grid_constant__ Mirrors mirrors) {
  ptx::pdl_start();
  extern __shared__ int32_t pairs[];
  const int64_t t = blockIdx.x;
  const int slots = of_token.slots;
  for (int i = threadIdx.x; i < slots; i += kThreads)
    pairs[of_token.rank(t, i)] = of_token.pair(t, i);
  __syncthreads();
  const int c = (static_cast<int>(blockIdx.y) * kThreads + static_cast<int>(threadIdx.x)) * kRun;
  if (c >= d) return;
  float sum[kRun] = {};
  const auto plus = [&](const auto* from) {
    float v[kRun];
    load<kRun>(from, v);
#pragma unroll
    for (int i = 0; i < kRun; ++i) sum[i] += v[i];
  };
  if (add) load<kRun>(acc + t * acc_stride + c, sum);
#pragma unroll 4
  for (int i = 0; i < slots; ++i) plus(y + pairs[i] * y_stride + c);
  if (addend != nullptr) plus(addend + t * addend_stride + c);
  store_mirrored(reinterpret_cast<Pack<float, kRun>*>(acc + t * acc_stride + c),
                 packed<kRun, float>(sum), mirrors);
}

template <int kRun, class Y, class Addend>
void launch_combine(Device& device, const CombineStep& step) {
  const int64_t d = step.acc.dim(1);
  const bool more = !step.addend.empty(), by_ids = !step.ids.empty();
  const PairsOfToken of_token{.pair_of = step.pair_of,
                              .ids = by_ids ? step.ids.as<int32_t>() : nullptr,
                              .id_stride = by_ids ? step.ids.row_stride() : 0,
                              .slots = static_cast<int>(step.slots),
                              .num_ids = static_cast<int>(step.num_ids)};
  launch(device, "experts_combine", combine_kernel<kRun, Y, Addend>,
         {.grid = step.acc.dim(0),
          .block = kThreads,
          .grid_y = ceil_div(d, kThreads * kRun),
          .shared = step.slots * static_cast<int64_t>(sizeof(int32_t)),
          .pdl = true},
         step.y.as<Y>(), step.y.row_stride(), of_token, step.add,
         more ? step.addend.as<Addend>() : nullptr, more ? step.addend.row_stride() : 0,
         step.acc.as<float>(), step.acc.row_stride(), d, step.mirrors);
}

// grid: a row of `rows` along x
template <class Y>
__global__ void __launch_bounds__(kThreads)
    spread_kernel(const Y* y, int64_t y_stride, const int32_t* pair_of, const int32_t* ids,
                  int64_t id_stride, int slots, int64_t first, int64_t end, Y* rows,
                  int64_t row_stride, int n) {
  ptx::pdl_start();
  const int64_t i = blockIdx.x;
  const int32_t id = ids[i / slots * id_stride + i % slots];
  const int c = static_cast<int>(blockIdx.y) * kThreads + static_cast<int>(threadIdx.x);
  if (id < first || id >= end || c >= n) return;
  rows[i * row_stride + c] = y[pair_of[i] * y_stride + c];
}

}  // namespace

void experts_quantize(Device& device, const ConstTensorView& x, const TensorView& out) {
  with_stored_type(x.dtype, [&](auto element) {
    using X = decltype(element);
    launch(device, "experts_quantize", quantize_kernel<X>,
           {.grid = x.dim(0), .block = kThreads, .grid_y = group_blocks(x.dim(1)), .pdl = true},
           x.as<X>(), x.row_stride(), out.as<bf16>(), x.dim(1));
  });
}

void experts_swiglu(Device& device, const SwigluStep& step) {
  const int64_t inner = step.hidden.dim(1);
  const auto run = [&]<class X, class H>(X, H) {
    const auto kernel =
        step.activation == GateActivation::kSilu   ? swiglu_kernel<X, H, GateActivation::kSilu>
        : step.activation == GateActivation::kGelu ? swiglu_kernel<X, H, GateActivation::kGelu>
                                                   : swiglu_kernel<X, H, GateActivation::kGeluTanh>;
    launch(
        device, "experts_swiglu", kernel,
        {.grid = step.hidden.dim(0), .block = kThreads, .grid_y = group_blocks(inner), .pdl = true},
        step.gate_up.as<X>(), step.weight, step.hidden.as<H>(), step.hidden.row_stride(), inner,
        step.limit > 0 ? step.limit : HUGE_VALF, step.quantize, step.mirrors);
  };
  if (step.gate_up.dtype == DType::kBF16) return run(bf16(), bf16());
  with_stored_type(step.hidden.dtype, [&](auto element) { run(float(), element); });
}

void experts_swiglu_q8(Device& device, const SwigluQ8Step& step) {
  const int64_t row_runs = step.codes.dim(1) / gemm::kRun, runs = step.codes.dim(0) * row_runs;
  launch(device, "experts_swiglu_q8", swiglu_q8_kernel,
         {.grid = ceil_div(runs, kThreads), .block = kThreads, .pdl = true},
         step.gate_up.as<bf16>(), runs, Divisor(row_runs), step.limit > 0 ? step.limit : HUGE_VALF,
         step.codes.as<uint8_t>(), step.scales.as<uint8_t>());
}

void experts_spread(Device& device, const SpreadStep& step) {
  with_float_type(step.y.dtype, [&](auto element) {
    using Y = decltype(element);
    launch(device, "experts_spread", spread_kernel<Y>,
           {.grid = step.rows.dim(0),
            .block = kThreads,
            .grid_y = ceil_div(step.rows.dim(1), kThreads),
            .pdl = true},
           step.y.as<Y>(), step.y.row_stride(), step.pair_of, step.ids.as<int32_t>(),
           step.ids.row_stride(), step.ids.dim(1), step.first, step.end, step.rows.as<Y>(),
           step.rows.row_stride(), step.rows.dim(1));
  });
}

void experts_combine(Device& device, const CombineStep& step) {
  constexpr int kRun = 4;  // columns of a thread where rows are aligned to them
  const bool more = !step.addend.empty();
  const bool wide =
      packs(step.y, kRun) && packs(step.acc, kRun) && (!more || packs(step.addend, kRun));
  with_float_type(step.y.dtype, [&](auto element) {
    using Y = decltype(element);
    with_float_type(more ? step.addend.dtype : step.y.dtype, [&](auto addend_element) {
      using Addend = decltype(addend_element);
      wide ? launch_combine<kRun, Y, Addend>(device, step)
           : launch_combine<1, Y, Addend>(device, step);
    });
  });
}

}  // namespace dsv4
