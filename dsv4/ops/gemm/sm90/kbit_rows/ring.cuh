// The ring of a warpgroup: stages of its weight rows, copied by its first thread in the order in
// which the warpgroup multiplies them, over all rounds. A stage is copied again one stage after its
// last use. Where rows of the weight are not 16-byte aligned all threads copy words instead.

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
        memory_(memory),
        share_(share),
        thread_(static_cast<int>(threadIdx.x) % kGroupThreads) {}

  // By one thread of the warpgroup, before a barrier of the CTA.
  __device__ void init() const {
    for (int i = 0; i < params_.plan.stages; ++i) {
      memory_.full(share_.group, i).init(params_.words == nullptr ? 1 : kGroupThreads);
      memory_.empty(share_.group, i).init(kGroupThreads);
    }
  }
  __device__ void fill() {
    for (int i = 0; i < params_.plan.stages; ++i) copy();
  }

  // The next stage in order: waits for its bytes, and copies into the stage before it.
  __device__ const unsigned char* next() {
    memory_.full(share_.group, use_.stage).wait(use_.phase);
    if (started_) copy();
    started_ = true;
    return memory_.stage(share_.group, use_.stage);
  }
  // After what was read of it has been used.
  __device__ void free() {
    memory_.empty(share_.group, use_.stage).arrive();
    use_.next(params_.plan.stages);
  }

 private:
  __device__ void copy() {
    const Plan& plan = params_.plan;
    if (round_ >= plan.rounds || share_.stages == 0) return;
    const int row = share_.first_row(plan, round_, share_.row_group);
    const int word = (share_.first_stage + stage_) * plan.stage_units * kUnitWords;
    ptx::Mbarrier& full = memory_.full(share_.group, copy_.stage);
    ptx::Mbarrier& empty = memory_.empty(share_.group, copy_.stage);
    unsigned char* const to = memory_.stage(share_.group, copy_.stage);
    if (params_.words != nullptr) {
      empty.wait(copy_.phase ^ 1);
      copy_words(reinterpret_cast<uint32_t*>(to), row, word);
      full.arrive();
    } else if (thread_ == 0) {
      empty.wait(copy_.phase ^ 1);
      full.expect_tx(static_cast<uint32_t>(plan.rows * plan.stage_units * kUnitWords * 4));
      ptx::cp_async_bulk_tensor_2d_evict_first(ptx::smem_address(to), &params_.weight, full, word,
                                               row);
      full.arrive();
    }
    copy_.next(plan.stages);
    if (++stage_ == share_.stages) stage_ = 0, ++round_;
  }

  __device__ void copy_words(uint32_t* to, int row, int word) const {
    const int width = params_.plan.stage_units * kUnitWords, end = params_.k / 32 * K;
    for (int i = thread_; i < params_.plan.rows * width; i += kGroupThreads) {
      const int r = row + i / width, w = word + i % width;
      to[i] = r < params_.n && w < end ? params_.words[r * params_.word_stride + w] : 0;
    }
  }

  const Params& params_;
  const Memory& memory_;
  const Share& share_;
  const int thread_;
  sm90::RingCursor copy_, use_;
  int round_ = 0, stage_ = 0;  // of the next copy
  bool started_ = false;
};

}  // namespace dsv4::gemm::kbit_rows
