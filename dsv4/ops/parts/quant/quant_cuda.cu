// The quantizers use some lanes of a warp per group; quantize_q8 of bf16 in groups of 128, which
// every product of a prompt takes, has a kernel whose lanes keep their columns in registers. The
// Hadamard transform uses one warp per row, which is held in registers.

#include <cmath>
#include <type_traits>

#include "dsv4/base/bits.h"
#include "dsv4/base/divisor.h"
#include "dsv4/device/launch.cuh"
#include "dsv4/device/ptx/griddep.cuh"
#include "dsv4/ops/gemm/x/columns8.cuh"
#include "dsv4/ops/parts/quant/lanes.cuh"
#include "dsv4/ops/parts/quant/quant.h"

namespace dsv4::quant_kernel::cuda {
namespace {

constexpr int kWarps = 4;  // per CTA
constexpr int kThreads = kWarps * kWarp;
constexpr int kMaxPerLane = 32;  // elements of a row of the Hadamard transform

__device__ int64_t global_warp() {
  return static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / kWarp;
}
__device__ int lane_id() {
  return static_cast<int>(threadIdx.x) % kWarp;
}

// [t, k] in groups, each with its lanes. Threads past the last group get an empty group. Groups are
// counted in 32 bits, because a 64-bit division would take longer than a group.
struct Groups {
  uint32_t count;  // t * per_row
  uint32_t per_row;
  int k, group;
  GroupLanes lanes;

  // As many lanes as have a run of the group to process.
  Groups(const ConstTensorView& x, int size, int run)
      : count(static_cast<uint32_t>(x.dim(0) * ceil_div(x.dim(1), size))),
        per_row(static_cast<uint32_t>(ceil_div(x.dim(1), size))),
        k(static_cast<int>(x.dim(1))),
        group(size) {
    while (lanes.count > 1 && lanes.count / 2 * run >= size) lanes.count /= 2;
  }
  int64_t blocks() const { return ceil_div(int64_t{count} * lanes.count, kThreads); }
  __device__ uint32_t mine() const {
    return blockIdx.x * (kThreads / lanes.count) + threadIdx.x / lanes.count;
  }
  __device__ int64_t row(uint32_t g) const { return g / per_row; }
  __device__ int begin(uint32_t g) const { return static_cast<int>(g % per_row) * group; }
  __device__ int size(uint32_t g) const { return g < count ? min(group, k - begin(g)) : 0; }
};

template <int kRun, class T>
__global__ void quantize_q8_kernel(Groups groups, const T* x, int64_t x_stride, uint8_t* codes,
                                   int64_t codes_stride, uint8_t* scales, int64_t scales_stride) {
  ptx::pdl_start();
  const uint32_t g = groups.mine();
  const int64_t row = groups.row(g);
  const int begin = groups.begin(g), n = groups.size(g);
  const uint8_t scale = group_quantize_q8<kRun>(groups.lanes, x + row * x_stride + begin, n,
                                                codes + row * codes_stride + begin);
  if (n > 0 && groups.lanes.own() == 0) scales[row * scales_stride + begin / groups.group] = scale;
}

// A lane has 8 columns of kRunsOfLane groups; 16 lanes have a group.
constexpr int kRunsOfLane = 2;

// The conversion makes one code of all NaN; each keeps its sign, as other codes do.
__device__ uint2 with_signs(uint2 codes, const gemm::Run& x) {
  const auto signs = [&](int i) { return (x.word[i] >> 8 & 0x80) | (x.word[i] >> 16 & 0x8000); };
  return {codes.x | signs(0) | signs(1) << 16, codes.y | signs(2) | signs(3) << 16};
}

__global__ void __launch_bounds__(kThreads)
    quantize_q8_runs_kernel(int64_t runs, Divisor row_runs, const bf16* x, int64_t x_stride,
                            uint8_t* codes, int64_t codes_stride, uint8_t* scales,
                            int64_t scales_stride, const __grid_constant__ Mirrors mirrors) {
  ptx::pdl_start();
  const int64_t first = int64_t{blockIdx.x} * (kThreads * kRunsOfLane) + threadIdx.x;
  gemm::Run loaded[kRunsOfLane] = {};
  int64_t row[kRunsOfLane];
  int run[kRunsOfLane];
#pragma unroll
  for (int i = 0; i < kRunsOfLane; ++i) {
    const int64_t at = first + i * kThreads;
    row[i] = row_runs.divide(static_cast<uint32_t>(at));
    run[i] = static_cast<int>(at - row[i] * row_runs.divisor);
    if (at < runs) loaded[i] = gemm::Run::load(x + row[i] * x_stride + run[i] * gemm::kRun);
  }
#pragma unroll
  for (int i = 0; i < kRunsOfLane; ++i) {
    const gemm::CodesOfRun q(loaded[i]);  // by all lanes of the warp
    if (first + i * kThreads >= runs) continue;
    store_mirrored(reinterpret_cast<uint2*>(codes + row[i] * codes_stride + run[i] * gemm::kRun),
                   with_signs(q.codes, loaded[i]), mirrors);
    if (run[i] % gemm::kRuns == 0)
      store_mirrored(scales + row[i] * scales_stride + run[i] / gemm::kRuns, q.scale, mirrors);
  }
}

// Whether rows consist of whole groups of 128 bf16 numbers whose runs are aligned.
bool takes_runs(const QuantizeQ8Args& args) {
  return args.group == gemm::kRun * gemm::kRuns && args.x.dtype == DType::kBF16 &&
         args.x.dim(1) > 0 && args.x.dim(1) % args.group == 0 && packs(args.x, gemm::kRun) &&
         packs(args.codes, gemm::kRun) && args.x.numel() / gemm::kRun < INT32_MAX;
}

void launch_runs(Device& device, const QuantizeQ8Args& args) {
  const int64_t row_runs = args.x.dim(1) / gemm::kRun, runs = args.x.dim(0) * row_runs;
  launch(device, "quantize_q8", quantize_q8_runs_kernel,
         {.grid = ceil_div(runs, kThreads * kRunsOfLane), .block = kThreads, .pdl = true}, runs,
         Divisor(row_runs), args.x.as<bf16>(), args.x.row_stride(), args.codes.as<uint8_t>(),
         args.codes.row_stride(), args.scales.as<uint8_t>(), args.scales.row_stride(),
         args.mirrors);
}

// x may be out: a lane writes only elements that no other lane reads.
template <class Format, int kRun, class T, class Out>
__global__ void fake_quant_kernel(Groups groups, const T* x, int64_t x_stride, Out* out,
                                  int64_t out_stride) {
  ptx::pdl_start();
  const uint32_t g = groups.mine();
  x += groups.row(g) * x_stride + groups.begin(g);
  out += groups.row(g) * out_stride + groups.begin(g);
  const int n = groups.size(g);
  const uint8_t code = Format::scale(group_absmax<kRun>(groups.lanes, x, n));
  const float scale = ue8m0_to_f32(code), inverse = inverse_scale(code);
  for (int i = groups.lanes.own() * kRun; i < n; i += groups.lanes.count * kRun) {
    float v[kRun];
    load<kRun>(x + i, v);
#pragma unroll
    for (int j = 0; j < kRun; ++j) v[j] = Format::round(scaled_for_code(v[j], inverse)) * scale;
    store<kRun>(out + i, v);
  }
}

// A warp has a row. With rows shorter than a warp, some lanes are idle.
template <int kPer, int kRun, class T, class Out>
__global__ void hadamard_kernel(const T* x, int64_t x_stride, Out* out, int64_t out_stride,
                                int64_t rows, int n, float factor) {
  ptx::pdl_start();
  const int64_t row = global_warp();
  if (row >= rows) return;
  const int lane = lane_id(), begin = lane * kPer;
  const bool mine = begin < n;
  float v[kPer] = {};
  if (mine) {
    for (int j = 0; j < kPer; j += kRun) load<kRun>(x + row * x_stride + begin + j, v + j);
  }
  hadamard_in_lanes(v, n / kPer, lane);
  if (!mine) return;
#pragma unroll
  for (int j = 0; j < kPer; ++j) v[j] *= factor;
  for (int j = 0; j < kPer; j += kRun) store<kRun>(out + row * out_stride + begin + j, v + j);
}

// Calls body with the length of a lane's run: 8, 4, 2 or 1 elements, the most that groups and both
// tensors consist of.
template <class Body>
void with_run(int group, const ConstTensorView& a, const ConstTensorView& b, const Body& body) {
  const auto fits = [&](int run) { return group % run == 0 && packs(a, run) && packs(b, run); };
  if (fits(8)) {
    body(std::integral_constant<int, 8>{});
  } else if (fits(4)) {
    body(std::integral_constant<int, 4>{});
  } else if (fits(2)) {
    body(std::integral_constant<int, 2>{});
  } else {
    body(std::integral_constant<int, 1>{});
  }
}

template <class Format>
void launch_fake_quant(const Context& context, const FakeQuantArgs& args) {
  with_run(args.group, args.x, args.out, [&](auto run) {
    const Groups groups(args.x, args.group, run());
    with_float_type(args.x.dtype, [&](auto in) {
      with_float_type(args.out.dtype, [&](auto out) {
        using T = decltype(in);
        using Out = decltype(out);
        launch(*context.device, "fake_quant", fake_quant_kernel<Format, run(), T, Out>,
               {.grid = groups.blocks(), .block = kThreads, .pdl = true}, groups, args.x.as<T>(),
               args.x.row_stride(), args.out.as<Out>(), args.out.row_stride());
      });
    });
  });
}

template <int kPer>
void hadamard_of(const Context& context, const HadamardArgs& args) {
  const int64_t rows = args.x.dim(0), n = args.x.dim(1);
  const bool wide = packs(args.x, kPer) && packs(args.out, kPer);
  const auto factor = static_cast<float>(1 / std::sqrt(static_cast<double>(n)));
  with_float_type(args.x.dtype, [&](auto in) {
    with_float_type(args.out.dtype, [&](auto out) {
      using T = decltype(in);
      using Out = decltype(out);
      launch(*context.device, "hadamard",
             wide ? hadamard_kernel<kPer, kPer, T, Out> : hadamard_kernel<kPer, 1, T, Out>,
             {.grid = ceil_div(rows, kWarps), .block = kThreads, .pdl = true}, args.x.as<T>(),
             args.x.row_stride(), args.out.as<Out>(), args.out.row_stride(), rows, n, factor);
    });
  });
}

}  // namespace

const char* reject(const Context& context, const QuantizeQ8Args& args) {
  return takes_runs(args) ? nullptr : reject_mirrors(context, args);
}

void run(const Context& context, const QuantizeQ8Args& args) {
  if (takes_runs(args)) return launch_runs(*context.device, args);
  with_run(args.group, args.x, args.codes, [&](auto run) {
    const Groups groups(args.x, args.group, run());
    with_float_type(args.x.dtype, [&](auto in) {
      using T = decltype(in);
      launch(*context.device, "quantize_q8", quantize_q8_kernel<run(), T>,
             {.grid = groups.blocks(), .block = kThreads, .pdl = true}, groups, args.x.as<T>(),
             args.x.row_stride(), args.codes.as<uint8_t>(), args.codes.row_stride(),
             args.scales.as<uint8_t>(), args.scales.row_stride());
    });
  });
}

void run(const Context& context, const FakeQuantArgs& args) {
  args.format == FakeQuantFormat::kS8 ? launch_fake_quant<S8>(context, args)
                                      : launch_fake_quant<S4>(context, args);
}

const char* reject(const Context&, const HadamardArgs& args) {
  return args.x.dim(1) > kWarp * kMaxPerLane ? "rows are longer than a warp holds" : nullptr;
}

void run(const Context& context, const HadamardArgs& args) {
  const int64_t n = args.x.dim(1);
  const auto run = n <= kWarp        ? hadamard_of<1>
                   : n <= 2 * kWarp  ? hadamard_of<2>
                   : n <= 4 * kWarp  ? hadamard_of<4>
                   : n <= 8 * kWarp  ? hadamard_of<8>
                   : n <= 16 * kWarp ? hadamard_of<16>
                                     : hadamard_of<kMaxPerLane>;
  run(context, args);
}

}  // namespace dsv4::quant_kernel::cuda
