// The values of a row that a CTA has: a slice of consecutive ids. Every warp has a stretch of it.

#pragma once

#include "dsv4/base/bits.h"
#include "dsv4/device/ptx/bulk_copy.cuh"
#include "dsv4/ops/model/sample/tokens.cuh"

namespace dsv4::sample_kernel {

// Ids [begin, begin + count). A cluster has the values in shared memory, with -inf up to a
// multiple of four; a lane visits four in a row.
template <int kCtas>
struct Slice {
  static constexpr int kRun = kCtas > 1 ? 4 : 1;

  const float* values;
  int begin, count;

  // The runs of this warp: [first, last).
  __device__ int runs() const { return (count + kRun - 1) / kRun; }
  __device__ int stretch() const { return align_up_to_warp((runs() + kWarps - 1) / kWarps); }
  __device__ int first_run() const { return static_cast<int>(threadIdx.x) / kWarp * stretch(); }
  __device__ int last_run() const { return min(first_run() + stretch(), runs()); }

  // A run's values; a warp's runs are the lanes' in turn.
  __device__ void load(int run, float (&logit)[kRun]) const {
    if constexpr (kRun == 4) {
      const float4 quad = reinterpret_cast<const float4*>(values)[run];
      logit[0] = quad.x, logit[1] = quad.y, logit[2] = quad.z, logit[3] = quad.w;
    } else {
      logit[0] = values[run];
    }
  }
  // visit(logits, id of the first) for all runs, a thread's in ascending id.
  template <class Visit>
  __device__ void for_each_run(const Visit& visit) const {
#pragma unroll 1
    for (int run = first_run() + lane(); run < last_run(); run += kWarp) {
      float logit[kRun];
      load(run, logit);
      visit(logit, begin + kRun * run);
    }
  }
  // visit(logit, id) for all values; also for the -inf at the end.
  template <class Visit>
  __device__ void for_each(const Visit& visit) const {
    for_each_run([&](const float(&logit)[kRun], int id) {
#pragma unroll
      for (int j = 0; j < kRun; ++j) visit(logit[j], id + j);
    });
  }

  // By one warp: the id at `position` of the sizes of its values, in ascending id; in all lanes.
  template <class SizeOf>
  __device__ int locate(uint64_t position, const SizeOf& size_of) const {
#pragma unroll 1
    for (int at = first_run(); at < last_run(); at += kWarp) {
      const int run = at + lane();
      uint64_t size[kRun] = {}, sum = 0;
      if (run < last_run()) {
        float logit[kRun];
        load(run, logit);
#pragma unroll
        for (int j = 0; j < kRun; ++j) sum += size[j] = size_of(logit[j], begin + kRun * run + j);
      }
      const uint64_t all = warp_sum(sum);
      if (position >= all) {
        position -= all;
        continue;
      }
      uint64_t start = warp_sum_through({sum, 0}).mass - sum;
      int found = -1;
#pragma unroll
      for (int k = 0; k < kRun; ++k) {
        if (position >= start && position - start < size[k]) found = begin + kRun * run + k;
        start += size[k];
      }
      return static_cast<int>(__reduce_max_sync(~0u, static_cast<uint32_t>(found + 1))) - 1;
    }
    return -1;
  }

 private:
  static __device__ int lane() {
    return static_cast<int>(threadIdx.x) % kWarp;
  }
  static __device__ int align_up_to_warp(int n) {
    return (n + kWarp - 1) / kWarp * kWarp;
  }
};

// Copies `count` values to the shared memory of a cluster, in one request as far as they lie on 16
// bytes. Nothing in a team of one CTA.
template <int kCtas>
class SliceCopy {
 public:
  __device__ SliceCopy(Team<kCtas>& team, const float* from, float* to, int count) : team_(team) {
    if constexpr (kCtas > 1) start(from, to, count);
  }
  __device__ void wait() {
    __syncthreads();
    if (waits_) team_.wait(kRowCopy);
  }

 private:
  __device__ void start(const float* from, float* to, int count) {
    const int bulk = reinterpret_cast<uintptr_t>(from) % 16 == 0 ? count / 4 * 4 : 0;
    waits_ = bulk > 0;
    if (waits_ && threadIdx.x == 0) {
      const auto bytes = static_cast<uint32_t>(bulk * sizeof(float));
      team_.expect(kRowCopy, bytes);
      ptx::cp_async_bulk(ptx::smem_address(to), from, bytes, team_.copy_barrier());
    }
    const int padded = (count + 3) / 4 * 4;
    for (int i = bulk + static_cast<int>(threadIdx.x); i < padded; i += kThreads)
      to[i] = i < count ? from[i] : -INFINITY;
  }
  Team<kCtas>& team_;
  bool waits_ = false;
};

}  // namespace dsv4::sample_kernel
