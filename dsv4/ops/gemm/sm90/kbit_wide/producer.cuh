// The thread of the kernel that brings x and codes. A stage of the ring has a unit of both.

#pragma once

#include "dsv4/device/ptx/bulk_copy.cuh"
#include "dsv4/device/ptx/tensor_copy.cuh"
#include "dsv4/ops/gemm/sm90/kbit_wide/config.cuh"

namespace dsv4::gemm::kbit_wide {

// Codes of a unit, and scales with the first of each kScaleUnits.
template <class C>
__device__ void copy_codes(const Params& p, const Share& share, Shared<C>& shared, int unit,
                           int stage) {
  using S = Shared<C>;
  ptx::Mbarrier& full = shared.full[stage];
  const int at = share.first_unit + unit;
  const bool with_scales = unit == 0 || at % kScaleUnits == 0;
  full.expect_tx(static_cast<uint32_t>(S::kCodeBytes + (with_scales ? S::kScaleBytes : 0)));
  ptx::cp_async_bulk_tensor_2d(ptx::smem_address(shared.codes[stage]), &p.codes, full,
                               at * kUnitBlocks * C::K, share.first_row);
  if (with_scales)
    ptx::cp_async_bulk_tensor_2d(ptx::smem_address(shared.scales[share.scale_stage<C>(unit)]),
                                 &p.scales, full, at / kScaleUnits * kScaleUnits * kUnitBlocks,
                                 share.first_row);
}

// Before anything waits: the first codes.
template <class C>
__device__ void start_codes(const Params& p, const Share& share, Shared<C>& shared) {
  for (int unit = 0; unit < min(Shared<C>::kStages, share.units); ++unit)
    copy_codes(p, share, shared, unit, unit);
}

// Rows of tokens that do not exist keep what they have: no other column of a product sees them.
template <class C>
__device__ void copy_x(const Params& p, const Share& share, Shared<C>& shared, int unit,
                       int stage) {
  ptx::Mbarrier& full = shared.full[stage];
  const int tokens = min(C::kColumns, p.tokens - share.first_token);
  const auto bytes = static_cast<uint32_t>(tokens * kHalfRow * 2);
  full.expect_tx(2 * bytes);
  full.arrive();
  const int64_t first_half = int64_t{share.first_unit + unit} * 2;
#pragma unroll
  for (int half = 0; half < 2; ++half)
    ptx::cp_async_bulk(ptx::smem_address(shared.x[stage][half]),
                       p.x + ((first_half + half) * p.tokens + share.first_token) * kHalfRow, bytes,
                       full);
}

// By one thread, after start_codes().
template <class C>
__device__ void produce(const Params& p, const Share& share, Shared<C>& shared) {
  using S = Shared<C>;
  sm90::RingCursor at;
  for (int unit = 0; unit < share.units; ++unit) {
    if (unit >= S::kStages) {
      shared.empty[at.stage].wait(at.phase ^ 1);
      copy_codes(p, share, shared, unit, at.stage);
    }
    copy_x(p, share, shared, unit, at.stage);
    at.next(S::kStages);
  }
}

}  // namespace dsv4::gemm::kbit_wide
