// Copies of x for feed.cuh (swizzled by token, sorted, blocked), tensor maps, and the cases of one
// configuration: every way to feed it, checked and timed, then a second of the fastest.

#pragma once

#include "bench/micro/feed.cuh"
#include "bench/micro/stream_data.cuh"
#include "bench/micro/sustained.h"

namespace dsv4::micro {

// Chunk c (16 bytes) of each 128 bytes of token t goes to c ^ t % 8.
static __global__ void swizzle_rows(const uint4* x, uint4* to, int chunks) {
  for (int i = static_cast<int>(threadIdx.x); i < chunks; i += static_cast<int>(blockDim.x)) {
    const int64_t row = int64_t{blockIdx.x} * chunks;
    to[row + (i ^ static_cast<int>(blockIdx.x) % 8)] = x[row + i];
  }
}

// A warp copies one pair's row: the sorting copy. kBlocked: to [expert][block][slot], swizzled.
template <bool kBlocked>
__global__ void __launch_bounds__(256)
    sort_rows(const uint4* x, const int* rows, uint4* to, int pairs, int n, int chunks) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int pair = static_cast<int>(blockIdx.x) * 8 + static_cast<int>(threadIdx.x) / 32;
  if (pair >= pairs) return;
  const uint4* const from = x + int64_t{rows[pair]} * chunks;
  const int slot = pair % n;
  const int64_t expert = pair / n;
#pragma unroll 8
  for (int i = lane; i < chunks; i += 32) {
    int64_t at = int64_t{pair} * chunks + i;
    if (kBlocked) at = ((expert * (chunks / 8) + i / 8) * n + slot) * 8 + (i % 8 ^ slot % 8);
    to[at] = from[i];
  }
}

// Rows of `width` elements in boxes of 128 bytes x box_rows, 128-byte swizzle.
inline CUtensorMap row_map(const void* base, bool f16, uint64_t rows, uint32_t box_rows) {
  static const auto encode = [] {
    void* function = nullptr;
    cudaDriverEntryPointQueryResult status;
    MICRO_CUDA(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000,
                                                cudaEnableDefault, &status));
    return reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(function);
  }();
  CUtensorMap map;
  const cuuint64_t sizes[2] = {kColumns, rows}, strides[1] = {kColumns * (f16 ? 2ull : 1ull)};
  const cuuint32_t box[2] = {f16 ? 64u : 128u, box_rows}, steps[2] = {1, 1};
  const CUresult result =
      encode(&map, f16 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16 : CU_TENSOR_MAP_DATA_TYPE_UINT8, 2,
             const_cast<void*>(base), sizes, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
             CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
             CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result != CUDA_SUCCESS) {
    std::printf("{\"error\": \"cuTensorMapEncodeTiled %d\"}\n", static_cast<int>(result));
    std::exit(3);
  }
  return map;
}

template <class C>
class FeedCases {
 public:
  using D = typename C::D;
  static constexpr bool kF16 = sizeof(typename D::Type) == 2;
  static constexpr int kChunks = C::kRowBytes / 16, kPairs = kExperts * C::kN;

  FeedCases(const char* part, const std::string& name)
      : part_(part),
        name_(name),
        data_(multiprocessors(), 132 * kItemsPerExpert),
        swizzled_(size_t{kTokens} * C::kRowBytes),
        sorted_(size_t{kPairs} * C::kRowBytes),
        blocked_(size_t{kPairs} * C::kRowBytes) {
    std::vector<int> tokens(data_.rows.count);  // the phase of a token is that of its slot
    for (size_t i = 0; i < tokens.size(); ++i)
      tokens[i] = static_cast<int>(hash(i) % kTokens / 8 * 8 + i % C::kN % 8);
    data_.rows.set(tokens);
    swizzle_rows<<<kTokens, 256>>>(x(), reinterpret_cast<uint4*>(swizzled_.data), kChunks);
    sort<false>(sorted_.data);
    sort<true>(blocked_.data);
    MICRO_CUDA(cudaDeviceSynchronize());
    p_ = {.stream = data_.params(kCheckUnits),
          .feed = kNone,
          .warps = 1,
          .swizzled = swizzled_.data,
          .blocked = blocked_.data,
          .rows = row_map(data_.x.data, kF16, kTokens, 1),
          .tile = row_map(sorted_.data, kF16, kPairs, C::kN)};
    for (const int cta : {0, data_.ctas - 1}) expected_.push_back(reference(cta));
  }

  void time_sort() {
    const double us[2] = {measure([&] { sort<false>(sorted_.data); }, nullptr).us,
                          measure([&] { sort<true>(blocked_.data); }, nullptr).us};
    for (int i = 0; i < 2; ++i) {
      Line line(part_, std::string(kF16 ? "sort_f16" : "sort_e4m3") + (i ? "_blocked" : "_rows"));
      line.number("rows", kPairs).number("us", us[i]);
      line.number("us_of_24576_rows", us[i] * 24576 / kPairs);
      line.number("tb_s_written", double{kPairs} * C::kRowBytes / us[i] * 1e-6);
    }
  }

  template <int kMode>
  void one(const char* name, int feed, int warps, bool codes = true) {
    FeedParams p = p_;
    p.feed = feed, p.warps = warps, p.stream.copy_codes = codes;
    if (kMode == kCluster) p.tile = row_map(sorted_.data, kF16, kPairs, C::kN / 2);
    double error = -1;
    if (feed != kNone && codes) {
      MICRO_CUDA(cudaMemset(data_.out.data, 0xff, data_.out.count * sizeof(float)));
      start<kMode>(p);
      MICRO_CUDA(cudaDeviceSynchronize());
      const size_t count = size_t{C::kRows} * C::kN;
      error =
          std::max(relative_error(data_.out.host(0, count), expected_[0]),
                   relative_error(data_.out.host((data_.ctas - 1) * count, count), expected_[1]));
    }
    p.stream.units = kUnits;
    const Timing t = measure([&] { start<kMode>(p); }, &data_.spans);
    Line line(part_, name_ + "_" + name);
    report<C>(line, t, kUnits, data_.ctas);
    line.number("warps", warps);
    const double each = double{kUnits} * data_.ctas / t.us * 1e-6;
    line.number("codes_tb_s", codes ? each * C::kStrips * C::kUnitBytes : 0);
    line.number("x_tb_s", feed == kNone ? 0 : each * C::kN * C::kSteps * 128);
    if (error < 0) return;
    line.check(error, error_limit<D>());
    if (error <= error_limit<D>() && t.us < best_us_) {
      best_us_ = t.us;
      p.stream.units = 2048;
      best_name_ = name;
      best_ = [this, p] { start<kMode>(p); };
    }
  }

  // Every feed without clusters, or those with (a process of its own: a trap ends one), and a
  // second of the fastest.
  void all(bool clusters) {
    if (clusters) {
      one<kPlain>("tile_bulk", kTileBulk, 1);
      one<kCluster>("tile_bulk_cluster", kTileBulk, 1);
      one<kCluster>("tile_tensor_cluster", kTileTensor, 1);
    } else {
      one<kPlain>("barriers_only", kNone, 1, false);
      one<kPlain>("codes_only", kNone, 1);
      for (const int warps : {3, 4, 6, 7}) one<kFenced>("gather", kGather, warps);
      one<kPlain>("tile_tensor", kTileTensor, 1);
      one<kPlain>("tile_bulk", kTileBulk, 1);
      for (const int warps : {1, 3}) one<kPlain>("row_bulk", kRowBulk, warps);
      for (const int warps : {1, 3}) one<kPlain>("row_tensor", kRowTensor, warps);
    }
    if (!best_) return;
    const double flops = 2.0 * C::kRows * 256 * C::kN * 2048 * data_.ctas;
    sustain(name_ + "_" + best_name_, best_, flops, data_.spans);
  }

 private:
  static constexpr int kUnits = 512, kCheckUnits = 20;

  const uint4* x() const { return reinterpret_cast<const uint4*>(data_.x.data); }
  template <bool kBlocked>
  void sort(unsigned char* to) {
    sort_rows<kBlocked><<<(kPairs + 7) / 8, 256>>>(
        x(), data_.rows.data, reinterpret_cast<uint4*>(to), kPairs, C::kN, kChunks);
    MICRO_CUDA(cudaGetLastError());
  }
  template <int kMode>
  void start(const FeedParams& p) {
    constexpr int kShared = std::max<int>(sizeof(typename C::Shared), 120 << 10);
    static_assert(sizeof(typename C::Shared) <= 227 << 10);
    MICRO_CUDA(cudaFuncSetAttribute(feed_kernel<C, kMode>,
                                    cudaFuncAttributeMaxDynamicSharedMemorySize, kShared));
    cudaLaunchAttribute cluster;
    cluster.id = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim = {.x = kMode == kCluster ? 2u : 1u, .y = 1, .z = 1};
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(static_cast<unsigned>(data_.ctas));
    config.blockDim = dim3(C::kThreads);
    config.dynamicSmemBytes = kShared;
    config.attrs = &cluster, config.numAttrs = 1;
    MICRO_CUDA(cudaLaunchKernelEx(&config, feed_kernel<C, kMode>, p));
  }
  std::vector<double> reference(int cta) {
    const std::vector<uint32_t> table = data_.table.host();
    const auto weight = [&](uint8_t code, uint8_t scale) {
      return D::weight(code, scale, table.data());
    };
    if constexpr (C::kParts == 0) return data_.reference(p_.stream, cta, true, weight);
    return data_.reference(p_.stream, cta, true, weight,
                           [](int column, int n) { return token_factor(column / 128 % 4, n); });
  }

  std::string part_, name_;
  Data<C> data_;
  Buffer<unsigned char> swizzled_, sorted_, blocked_;
  FeedParams p_;
  std::vector<std::vector<double>> expected_;
  double best_us_ = 1e30;
  std::string best_name_;
  std::function<void()> best_;
};

}  // namespace dsv4::micro
