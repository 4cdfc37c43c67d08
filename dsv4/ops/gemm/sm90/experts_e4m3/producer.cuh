// One lane that copies the stages of a CTA into the ring: of each strip of the item, a run of four
// chunks.

#pragma once

#include "dsv4/device/ptx/bulk_copy.cuh"
#include "dsv4/ops/gemm/sm90/experts_e4m3/config.cuh"

namespace dsv4::gemm::experts_e4m3 {

// ring: where the first stage goes
template <class S>
__device__ void produce(const Params& p, const Range& range, S& shared, RingPlace<S> ring = {}) {
  constexpr int kUnit = S::kUnit;
  const int steps = steps_of(p), strip_bytes = p.chunks * kUnit;
  for (Work work(range); work.more(); work.next(p)) {
    const int strips = strips_of(p, work.stage);
    const std::byte* item =
        p.images.of(work.entry->expert) + int64_t{work.stage} * kStrips * strip_bytes;
    for (int step = 0; step < steps; ++step, ring.next()) {
      const int run = min(kGroups, p.chunks - step * kGroups) * kUnit;
      shared.empty[ring.stage].wait(ring.phase ^ 1);
      shared.full[ring.stage].expect_tx(strips * run);
      for (int i = 0; i < strips; ++i) {
        ptx::cp_async_bulk_evict_first(
            ptx::smem_address(shared.stages[ring.stage] + i * kGroups * kUnit),
            item + i * strip_bytes + step * kGroups * kUnit, run, shared.full[ring.stage]);
      }
      shared.full[ring.stage].arrive();
    }
  }
}

}  // namespace dsv4::gemm::experts_e4m3
