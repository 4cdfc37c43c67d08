// 4. What do e4m3 products (RS wgmma) give with weights decoded in registers?
//
//   promoted    128 (or 192) x N tiles, one m64 a warpgroup: products of 128 columns sum in the
//               tensor core, then join f32 sums times the token's factor of that group (Q8).
//               kHalves = 2 splits N, so that one half multiplies while the other is added.
//               mxfp4: design 2.6, prediction 26 - 28 at N = 96 and 20 at 128, floor 4,096 / N;
//               k3_rounded: the same loop for K3, codebook times scale rounded to e4m3
//   token       one factor a token, no promotion, two m64 a warpgroup: upper bound, what Humming
//               does at 834 TFLOP/s
//   exact       K3 exactly: the exponent of a scale in the bytes, its mantissa by a promotion every
//               32 columns, one factor a token: an upper bound of this form
//
// Not measured: the ring of promoted and exact, the epilogue. `error_of_rounding` is the error of
// k3_rounded against the exact weights, relative to the sums (the codebook's own is 0.16).

#include "bench/micro/feed.cuh"
#include "bench/micro/stream_data.cuh"
#include "bench/micro/sustained.h"

namespace dsv4::micro {
namespace {

enum Promotion { kEvery128, kEvery32 };

template <class D, int kN, int kGroups, int kHalves_, int kPromotion_>
struct Promoted : Stream<D, kN, kGroups, 1> {
  static constexpr int kHalves = kHalves_, kPart = kN / kHalves, kPromotion = kPromotion_;
  struct Shared : Stream<D, kN, kGroups, 1>::Shared {
    float factors[4][kN];  // of a group of 128 columns: of each token
  };
};

// sums += part * factor of rows g, g + 8.
template <int kN>
__device__ inline void promote_rows(float (&part)[kN / 2], float row, float other, float* sums) {
  ptx::wgmma_fence_operand(part);
#pragma unroll
  for (int i = 0; i < kN / 2; ++i) sums[i] = fmaf(part[i], i % 4 < 2 ? row : other, sums[i]);
}

template <class C>
struct Consumer {
  using D = typename C::D;
  using Shared = typename C::Shared;
  const Shared& s;
  D d;
  uint64_t x;
  int strip;
  float sums[C::kN / 2] = {};

  __device__ Consumer(const Shared& shared, int group)
      : s(shared),
        d(shared.own_table[threadIdx.x % kWarpLanes], shared.table),
        x(ptx::make_smem_desc_128B(ptx::smem_address(shared.x))),
        strip(group * 4 + static_cast<int>(threadIdx.x) / kWarpLanes % 4) {}

  __device__ uint64_t columns(int stage, int half, int fragment) const {
    return ptx::advance_desc(
        x, static_cast<uint32_t>(stage * C::kN * 128 + half * C::kPart * 128 + fragment * 32));
  }
  __device__ const unsigned char* unit_of(int u) const {
    return s.codes[u % C::kCodeStages] + strip * C::kUnitBytes;
  }

  // Two units: four groups of 128 columns. All products are done at the end, because ptxas waits
  // for each product by itself when sums cross the loop's back edge.
  __device__ void two_units(int u) {
    float part[C::kHalves][C::kPart / 2];
    uint32_t a[2][4][4];
    Unit<D> unit;
#pragma unroll
    for (int g = 0; g < 4; ++g) {
      unit.load(unit_of(u + g / 2), g % 2);
      unit.decode(d, g % 2, a[g % 2]);
#pragma unroll
      for (int half = 0; half < C::kHalves; ++half) {
        if (g > 0) {
          ptx::wgmma_wait_group<C::kHalves - 1>();
          promote<C::kPart>(part[half], s.factors[g - 1] + half * C::kPart,
                            sums + half * C::kPart / 2);
        }
        ptx::wgmma_fence();
#pragma unroll
        for (int f = 0; f < 4; ++f)
          ptx::Wgmma<__nv_fp8_e4m3, C::kPart>::run(part[half], a[g % 2][f], columns(g, half, f),
                                                   f != 0);
        ptx::wgmma_commit_group();
      }
    }
    ptx::wgmma_wait_group<0>();
#pragma unroll
    for (int half = 0; half < C::kHalves; ++half)
      promote<C::kPart>(part[half], s.factors[3] + half * C::kPart, sums + half * C::kPart / 2);
  }

  // Promotes every 32 columns; the products use two partial sums in turn.
  __device__ void two_units_by_32(int u) {
    float part[2][C::kN / 2];
    Unit<D> unit;
    float mantissas[2][2];
#pragma unroll
    for (int g = 0; g < 4; ++g) {
      uint32_t a[4][4];
      unit.load(unit_of(u + g / 2), g % 2);
      unit.decode(d, g % 2, a);
#pragma unroll
      for (int f = 0; f < 4; ++f) {
        if (g * 4 + f >= 2) {
          ptx::wgmma_wait_group<1>();
          promote_rows<C::kN>(part[f % 2], mantissas[f % 2][0], mantissas[f % 2][1], sums);
        }
        mantissas[f % 2][0] = D::mantissa(unit.scales, f, 0);
        mantissas[f % 2][1] = D::mantissa(unit.scales, f, 1);
        ptx::wgmma_fence();
        ptx::Wgmma<__nv_fp8_e4m3, C::kN>::run(part[f % 2], a[f], columns(g, 0, f), 0);
        ptx::wgmma_commit_group();
      }
    }
    ptx::wgmma_wait_group<0>();
#pragma unroll
    for (int f = 0; f < 2; ++f)
      promote_rows<C::kN>(part[f], mantissas[f][0], mantissas[f][1], sums);
  }
};

template <class C>
__global__ void __launch_bounds__(C::kThreads, 1)
    promoted_kernel(const __grid_constant__ StreamParams p) {
  extern __shared__ __align__(1024) unsigned char memory[];
  auto& s = *reinterpret_cast<typename C::Shared*>(memory);
  for (int i = threadIdx.x; i < 4 * C::kN; i += C::kThreads)
    s.factors[i / C::kN][i % C::kN] = token_factor(i / C::kN, i % C::kN);
  fill<C>(p, s);
  const int group = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 128, 0);
  if (group < C::kGroups) {
    ptx::setmaxnreg_inc<C::kConsumerRegisters>();
    Consumer<C> consumer(s, group);
    const uint64_t begin_ns = nanoseconds();
    const int64_t begin = clock64();
#pragma unroll 1
    for (int u = 0; u < p.units; u += 2) {
      if constexpr (C::kPromotion == kEvery128) {
        consumer.two_units(u);
      } else {
        consumer.two_units_by_32(u);
      }
    }
    asm volatile("barrier.cta.sync 1, %0;" ::"n"(C::kGroups * 128) : "memory");
    if (threadIdx.x == 0)
      p.spans[blockIdx.x] = {clock64() - begin, static_cast<int64_t>(nanoseconds() - begin_ns)};
    const int lane = static_cast<int>(threadIdx.x) % kWarpLanes;
    float* const row = p.out + int64_t{blockIdx.x} * C::kRows * C::kN +
                       (consumer.strip * 16 + lane / 4) * C::kN + lane % 4 * 2;
#pragma unroll
    for (int i = 0; i < C::kN / 2; ++i)
      row[i % 4 / 2 * 8 * C::kN + i / 4 * 8 + i % 2] = consumer.sums[i];
  } else {
    ptx::setmaxnreg_dec<C::kOtherRegisters>();
  }
}

template <class C>
void start_promoted(const StreamParams& p, int ctas) {
  constexpr int kShared = std::max<int>(sizeof(typename C::Shared), 120 << 10);
  MICRO_CUDA(cudaFuncSetAttribute(promoted_kernel<C>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  kShared));
  promoted_kernel<C><<<ctas, C::kThreads, kShared>>>(p);
  MICRO_CUDA(cudaGetLastError());
}

// Columns of x times the token's factor of their group, as the kernel applies it.
template <class C>
std::vector<double> promoted_reference(Data<C>& data, const StreamParams& p) {
  const std::vector<uint32_t> table = data.table.host();
  const auto weight = [&](uint8_t code, uint8_t scale) {
    return C::D::weight(code, scale, table.data());
  };
  if constexpr (C::kPromotion == kEvery32) {
    return data.reference(p, 0, false, weight);
  } else {
    return data.reference(p, 0, false, weight,
                          [](int column, int n) { return token_factor(column / 128, n); });
  }
}

template <class D, int kN, int kGroups, int kHalves, int kPromotion>
void promoted(double expected) {
  using C = Promoted<D, kN, kGroups, kHalves, kPromotion>;
  constexpr int kUnits = 512;
  Data<C> data(multiprocessors(), multiprocessors());
  const StreamParams few = data.params(6), many = data.params(kUnits);
  start_promoted<C>(few, data.ctas);
  MICRO_CUDA(cudaDeviceSynchronize());
  const double error =
      relative_error(data.out.host(0, size_t{C::kRows} * kN), promoted_reference(data, few));
  const Timing t = measure([&] { start_promoted<C>(many, data.ctas); }, &data.spans);
  Line line("4", std::string(D::kName) + (kPromotion == kEvery32 ? "_every_32" : "_every_128"));
  report<C>(line, t, kUnits, data.ctas);
  line.number("halves", kHalves).expected(expected).check(error, error_limit<D>());
}

template <class D, int kN>
void token(double expected) {
  using C = Stream<D, kN>;
  Data<C> data(multiprocessors(), multiprocessors());
  Line line("4", std::string(D::kName) + "_token");
  time_stream<C, false, kAll>(data, data.params(512), line);
  line.expected(expected).check(check_stream<C, false>(data, data.params(6), 6), error_limit<D>());
  if constexpr (D::kRounds) {
    const StreamParams p = data.params(6);
    const auto exact = data.reference(p, 0, false, D::exact_weight);
    line.number("error_of_rounding", relative_error(data.out.host(0, exact.size()), exact));
  }
}

template <class D, int kN>
void token_ring() {
  using C = Stream<D, kN>;
  Data<C> data(multiprocessors(), 132 * kItemsPerExpert);
  const double error = check_stream<C, true>(data, data.params(20), 20);
  Line line("4", std::string(D::kName) + "_token_ring");
  time_stream<C, true, kAll>(data, data.params(512), line);
  line.check(error, error_limit<D>());
}

template <class D, int kN>
void sustain_token(const std::string& name) {
  using C = Stream<D, kN>;
  Data<C> data(multiprocessors(), multiprocessors());
  const StreamParams p = data.params(2048);
  sustain(
      name, [&] { start_stream<C, false, kAll>(p, data.ctas); },
      2.0 * C::kRows * 256 * kN * p.units * data.ctas, data.spans);
}

template <class D, int kN, int kHalves>
void sustain_promoted(const std::string& name) {
  using C = Promoted<D, kN, 2, kHalves, kEvery128>;
  Data<C> data(multiprocessors(), multiprocessors());
  const StreamParams p = data.params(2048);
  sustain(
      name, [&] { start_promoted<C>(p, data.ctas); },
      2.0 * C::kRows * 256 * kN * p.units * data.ctas, data.spans);
}

}  // namespace

void sustained_e4m3() {
  sustain_promoted<Mxfp4E4m3, 96, 2>("mxfp4_e4m3_n96_every_128");
  sustain_promoted<Mxfp4E4m3, 128, 2>("mxfp4_e4m3_n128_every_128");
  sustain_token<Mxfp4E4m3, 96>("mxfp4_e4m3_n96_token");
  sustain_token<Mxfp4E4m3, 128>("mxfp4_e4m3_n128_token");
}

void rs_e4m3() {
  promoted<Mxfp4E4m3, 96, 2, 2, kEvery128>(26);
  promoted<Mxfp4E4m3, 128, 2, 2, kEvery128>(20);
  promoted<Mxfp4E4m3, 96, 2, 1, kEvery128>(26);
  promoted<Mxfp4E4m3, 128, 2, 1, kEvery128>(20);
  promoted<K3RoundedE4m3, 96, 2, 2, kEvery128>(0);
  promoted<K3RoundedE4m3, 128, 2, 2, kEvery128>(0);
  promoted<K3ExponentE4m3, 96, 2, 1, kEvery32>(22);
  token<Mxfp4E4m3, 96>(0);
  token<Mxfp4E4m3, 128>(0);
  token<K3RoundedE4m3, 96>(0);
  token<K3RoundedE4m3, 128>(0);
  token_ring<Mxfp4E4m3, 96>();
  token_ring<K3RoundedE4m3, 96>();
}

}  // namespace dsv4::micro
