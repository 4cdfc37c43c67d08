// One lane that copies the stages of gate and up: two strips of either, runs of four chunks.

#pragma once

#include "dsv4/device/ptx/bulk_copy.cuh"
#include "dsv4/ops/gemm/sm90/experts_e4m3/config.cuh"
#include "dsv4/ops/gemm/sm90/image_rows/params.h"

namespace dsv4::gemm::image_rows {

template <class S>
__device__ void produce_gate_up(const Params& p, const experts::Range& range, S& shared) {
  using namespace experts_e4m3;
  constexpr int kUnit = S::kUnit;
  const int steps = steps_of(p), strip_bytes = p.chunks * kUnit;
  RingPlace<S> ring;
  for (Work work(range); work.more(); work.next(p)) {
    const int strips = min(kPairStrips, p.strips / 2 - work.stage * kPairStrips);  // of either
    const int64_t from = int64_t{work.stage} * kPairStrips * strip_bytes;
    const std::byte* const gate = p.images.of(work.entry->expert) + from;
    const std::byte* const up = p.up.of(work.entry->expert) + from;
    for (int step = 0; step < steps; ++step, ring.next()) {
      const int run = min(kGroups, p.chunks - step * kGroups) * kUnit;
      shared.empty[ring.stage].wait(ring.phase ^ 1);
      shared.full[ring.stage].expect_tx(2 * strips * run);
      for (int i = 0; i < 2 * strips; ++i) {
        const bool is_up = i >= strips;
        const int strip = is_up ? i - strips : i;
        ptx::cp_async_bulk_evict_first(
            ptx::smem_address(shared.stages[ring.stage] +
                              (is_up * kPairStrips + strip) * kGroups * kUnit),
            (is_up ? up : gate) + strip * strip_bytes + step * kGroups * kUnit, run,
            shared.full[ring.stage]);
      }
      shared.full[ring.stage].arrive();
    }
  }
}

}  // namespace dsv4::gemm::image_rows
