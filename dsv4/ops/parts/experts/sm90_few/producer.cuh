// One lane that copies the stages of a CTA into the ring.

#pragma once

#include "dsv4/device/ptx/bulk_copy.cuh"
#include "dsv4/ops/parts/experts/sm90_few/config.cuh"

namespace dsv4::experts_kernel::sm90_few {

template <int K>
__device__ void produce(const Params& p, Shared<K>& shared) {
  constexpr int kStages = Shared<K>::kStages;
  const int strip_bytes = p.chunks * kUnitBytes<K>;
  for (Work work{Range(p)}; work.more(); work.next(p)) {
    const int stage = work.done % kStages;
    shared.empty[stage].wait((work.done / kStages + 1) % 2);
    const int first = work.stage * p.stage_strips;
    const int bytes = strips_of(p, work.stage) * strip_bytes;
    const std::byte* from = p.images.of(work.entry->expert) + int64_t{first} * strip_bytes;
    shared.full[stage].expect_tx(bytes);
    ptx::cp_async_bulk_evict_first(ptx::smem_address(shared.stages[stage]), from, bytes,
                                   shared.full[stage]);
    shared.full[stage].arrive();
  }
}

}  // namespace dsv4::experts_kernel::sm90_few
