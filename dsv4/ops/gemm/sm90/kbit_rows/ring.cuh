// The ring of a warpgroup: stages of its weight rows, copied by its first thread in the order in
// which the warpgroup multiplies them, over all rounds. A stage is copied again one stage after its
// last use, for the use that is as many stages later.

#pragma once

#include "dsv4/device/ptx/tensor_copy.cuh"
#include "dsv4/device/sm90/ring.cuh"
#include "dsv4/ops/gemm/sm90/kbit_rows/config.cuh"

namespace dsv4::gemm::kbit_rows {

template <int K>
class Ring {
 public:
  static constexpr int kUnitWords = kUnit / 32 * K;  // of a row

  __device__ Ring(const Params& params, const Memory& memory, const Share& share)
      : params_(params),
        full_(&memory.full(share.group, 0)),
        stages_(memory.stage(share.group, 0)),
        copies_(memory.copies(share.group)) {}

  // By the first thread of the warpgroup, before a barrier of the CTA.
  __device__ void start(const Share& share) {
    const Plan& plan = params_.plan;
    Copies next{.rows = share.group_of_rows(plan, 0) + share.row_group,
                .stage = share.first_stage,
                .first = share.first_stage,
                .end = share.first_stage + share.stages,
                .left = share.stages * plan.rounds};
    for (int i = 0; i < plan.stages; ++i) full(i).init(1), empty(i).init(kGroupThreads / kWarp);
    ptx::fence_mbarrier_init();
    for (int i = 0; i < plan.stages; ++i) copy(next, i);
    copies_ = next;
  }

  // The next stage in order: waits for its bytes, and copies into the stage before it.
  __device__ const unsigned char* next() {
    full(use_.stage).wait(use_.phase);
    if (started_ && threadIdx.x % kGroupThreads == 0) copy_again();
    started_ = true;
    return stages_ + use_.stage * stage_bytes();
  }
  // After what was read of it has been used. One lane arrives: arrivals take turns.
  __device__ void free() {
    __syncwarp();
    if (threadIdx.x % kWarp == 0) empty(use_.stage).arrive();
    use_.next(params_.plan.stages);
  }

 private:
  __device__ ptx::Mbarrier& full(int i) const { return full_[i]; }
  __device__ ptx::Mbarrier& empty(int i) const { return full_[kWarpgroups * kMaxStages + i]; }
  __device__ int stage_bytes() const { return Layout::bytes_of_stage(K, params_.plan); }

  __device__ void copy_again() {
    Copies next = copies_;
    if (next.left == 0) return;
    const bool first = use_.stage == 0;
    const int before = first ? params_.plan.stages - 1 : use_.stage - 1;
    empty(before).wait(use_.phase ^ static_cast<uint32_t>(first));
    copy(next, before);
    copies_ = next;
  }

  __device__ void copy(Copies& next, int to) {
    if (next.left == 0) return;
    const Plan& plan = params_.plan;
    full(to).expect_tx(static_cast<uint32_t>(plan.rows * plan.stage_units * kUnitWords * 4));
    ptx::cp_async_bulk_tensor_2d_evict_first(
        ptx::smem_address(stages_ + to * stage_bytes()), &params_.weight, full(to),
        next.stage * plan.stage_units * kUnitWords, plan.first_row(next.rows));
    full(to).arrive();
    --next.left;
    if (++next.stage < next.end) return;
    next.stage = next.first;
    next.rows += plan.clusters * plan.row_groups;
  }

  const Params& params_;
  ptx::Mbarrier* const full_;
  unsigned char* const stages_;
  Copies& copies_;
  sm90::RingCursor use_;
  bool started_ = false;
};

}  // namespace dsv4::gemm::kbit_rows
