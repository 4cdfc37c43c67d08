// The kernel of query.h.
//
// Problem    c = Q8(rms_norm(latent)); a CTA has 128 rows of wq_b or of the indexer's and all of K,
//            so there are no partial sums. A cluster of 4 CTAs has a query head or 4 indexer heads.
//            The first clusters append rows (append_cluster.cuh), which take less time
// Bound      reading the weights: 128 KB per CTA at K = 1024
// Tiles      a slab is 128 rows x 128 columns (16 KB), a stage of the ring: two tiles of wgmma with
//            weights as M (64 rows) and tokens as N (8, 16, 32). Products of a slab start at zero
//            and are added in f32 times the scales of its columns, the official arithmetic
// Roles      warps 0 - 3, 4 - 7: a tile each | warp 8, lane 0: copies | warp 9: cos and sin
// Latents    every CTA normalizes and quantizes all of them, or copies the codes that
//            normalize_kernel has stored (query_latent.cuh)
// Order      the ring is filled before the wait for the previous kernel
// Exchange   one sum of squares per token and rank of a head, to all ranks (st.async), added in
//            rank order; cos and sin, of which each CTA computes those of a quarter of the tokens.
//            Bits of a token depend neither on the others nor on how many there are
// Barriers   full[s]    1 + bytes | producer   | consumers
//            empty[s]   256       | consumers  | producer
//            exchanged  1 + bytes | all ranks  | consumers
//            rotated    1 + bytes | all ranks  | warps 4 - 7, where rows rotate
//            x_full     1 + bytes | producer   | consumers, of stored codes
//            named 1    256       | consumers  | consumers

#pragma once

#include "dsv4/device/ptx/fence.cuh"
#include "dsv4/device/ptx/griddep.cuh"
#include "dsv4/device/ptx/tensor_copy.cuh"
#include "dsv4/ops/attention_in/sm90_few/append_cluster.cuh"
#include "dsv4/ops/attention_in/sm90_few/query_epilogue.cuh"
#include "dsv4/ops/few_gemm/products.cuh"

namespace dsv4::attention_in_kernel::query {

// What a CTA has: rows row .. row + 127 of a weight.
struct Work {
  bool is_index;
  int rank, head;  // head: of q or of the indexer

  __device__ explicit Work(const Params& p) {
    const int cluster = static_cast<int>(blockIdx.x) / kRanks - p.row_clusters;
    rank = static_cast<int>(blockIdx.x) % kRanks;
    is_index = cluster >= p.q.heads;
    head = is_index ? (cluster - p.q.heads) * kRanks + rank : cluster;
  }
  __device__ const Weight& weight(const Params& p) const { return is_index ? p.index : p.q; }
  __device__ int row() const { return is_index ? head * kRows : head * kHeadWidth + rank * kRows; }
  __device__ bool exists(const Params& p) const { return head < weight(p).heads; }
  __device__ bool rotates() const { return is_index || rank == kRanks - 1; }
  // The ranks of this cluster that rotate.
  __device__ int first_rotating() const { return is_index ? 0 : kRanks - 1; }
  __device__ int end_rotating(const Params& p) const {
    return is_index ? min(kRanks, p.index.heads - (head - rank)) : kRanks;
  }
};

// The thread that copies weights.
template <int kTokens>
class Producer {
 public:
  __device__ Producer(const Params& p, const Memory<kTokens>& memory, const Work& work)
      : p_(p), memory_(memory), weight_(work.weight(p)), row_(work.row()) {}

  __device__ void init_barriers(const Work& work) const {
    for (int i = 0; i < p_.stages; ++i) memory_.full(i).init(1), memory_.empty(i).init(kConsumers);
    memory_.exchanged().init(1), memory_.rotated().init(1), memory_.x_full().init(1);
    ptx::fence_mbarrier_init();
    if (!work.is_index) expect(memory_.exchanged(), kRanks * kTokens * sizeof(float));
    if (work.rotates()) expect(memory_.rotated(), p_.tokens * kPairs * sizeof(float2));
  }
  __device__ void fill() {
    while (slab_ < min(p_.stages, p_.slabs)) copy_slab();
  }
  // Stored codes of all latents.
  __device__ void copy_x() const {
    ptx::Mbarrier& full = memory_.x_full();
    full.expect_tx(p_.slabs * kTokens * kSlabColumns);
    for (int slab = 0; slab < p_.slabs; ++slab)
      ptx::cp_async_bulk_tensor_2d(ptx::smem_address(memory_.x(slab)), &p_.codes, full,
                                   slab * kSlabColumns, 0);
    full.arrive();
  }
  __device__ void stream() {
    while (slab_ < p_.slabs) {
      memory_.empty(stage_).wait(phase_ ^ 1);
      copy_slab();
    }
  }

 private:
  static __device__ void expect(ptx::Mbarrier& barrier, uint32_t bytes) {
    barrier.expect_tx(bytes);
    barrier.arrive();
  }
  __device__ void copy_slab() {
    ptx::Mbarrier& full = memory_.full(stage_);
    full.expect_tx(kSlab);
    ptx::cp_async_bulk_tensor_2d_evict_first(memory_.slab(stage_), &weight_.codes, full,
                                             slab_ * kSlabColumns, row_);
    full.arrive();
    ++slab_;
    if (++stage_ == p_.stages) stage_ = 0, phase_ ^= 1;
  }

  const Params& p_;
  const Memory<kTokens>& memory_;
  const Weight& weight_;
  const int row_;
  int slab_ = 0, stage_ = 0, phase_ = 0;
};

// The rows of the CTA times all latents, rounded to bf16. Lane i has the weight's scale of slab i.
template <int kTokens>
__device__ void multiply(const Params& p, const Memory<kTokens>& memory, float scales,
                         Products<kTokens>& products, int thread) {
  auto& sum = products.value;
#pragma unroll
  for (float& value : sum) value = 0;
  const int tile = thread / (kConsumers / 2) * few_gemm::kSlabSize;
  int stage = 0, phase = 0;
  for (int slab = 0; slab < p.slabs; ++slab) {
    const float scale = __shfl_sync(~0u, scales, slab);
    memory.full(stage).wait(phase);
    float part[kTokens / 2];
    few_gemm::multiply_shared<__nv_fp8_e4m3, kTokens>(part, memory.slab(stage) + tile,
                                                      ptx::smem_address(memory.x(slab)));
    memory.empty(stage).arrive();
    if (++stage == p.stages) stage = 0, phase ^= 1;
#pragma unroll
    for (int n = 0; n < kTokens / 8; ++n) {
      const float2 x = *reinterpret_cast<const float2*>(memory.x_scale() + slab * kTokens + 8 * n +
                                                        thread % 4 * 2);
      const float2 factor{scale * x.x, scale * x.y};
#pragma unroll
      for (int i = 4 * n; i < 4 * n + 4; i += 2) {
        sum[i] = fmaf(part[i], factor.x, sum[i]);
        sum[i + 1] = fmaf(part[i + 1], factor.y, sum[i + 1]);
      }
    }
  }
#pragma unroll
  for (float& value : sum) value = bf16_step(value);
}

template <int kTokens, bool kNormalizes>
__device__ void compute_queries(const Params& p) {
  const Memory<kTokens> memory(p);
  const Work work(p);
  const bool exists = work.exists(p);
  const int thread = static_cast<int>(threadIdx.x), warp = thread / kWarp, lane = thread % kWarp;
  Producer<kTokens> producer(p, memory, work);
  if (thread == kProducerWarp * kWarp) {
    producer.init_barriers(work);
    if (exists) producer.fill();
    if (!kNormalizes) ptx::prefetch_tensormap(&p.codes);
  }
  few_gemm::PendingScale scale;
  if (exists && lane < p.slabs) scale = work.weight(p).scale_at(work.row(), lane);
  LatentBatch<kTokens> latents(p, memory, thread);
  if (kNormalizes && exists && thread < kConsumers) latents.prepare();
  __syncthreads();
  ptx::cluster_arrive_relaxed();
  ptx::cluster_wait();  // all barriers can count
  ptx::griddepcontrol_wait();
  if (warp == kRotationWarp)
    return send_rotations(p, memory, work.rank, work.first_rotating(), work.end_rotating(p));
  if (!exists) return;
  if (warp == kProducerWarp) {
    if (lane > 0) return;
    if (!kNormalizes) producer.copy_x();
    return producer.stream();
  }
  if constexpr (kNormalizes) {
    normalize_latents(latents);
  } else {
    load_latents(p, memory, thread);
  }
  Products<kTokens> products;
  multiply(p, memory, scale.value(), products, thread);
  if (work.is_index) {
    finish_index_head(p, memory, products, work.head, thread);
  } else {
    finish_head(p, memory, products, work.head, work.rank, thread);
  }
}

// grid: p.num_clusters() clusters. kTokens: 8, 16 or 32. kNormalizes: p.latent, else p.codes
template <int kTokens, bool kNormalizes>
__global__ void __launch_bounds__(kThreads, 3) query_kernel(const __grid_constant__ Params p) {
#if __CUDA_ARCH_FEAT_SM90_ALL
  ptx::griddepcontrol_launch_dependents();
  const int cluster = static_cast<int>(blockIdx.x) / kRanks;
  if (cluster >= p.row_clusters) return compute_queries<kTokens, kNormalizes>(p);
  auto& shared = *reinterpret_cast<sm90_few::Shared*>(ptx::dynamic_smem());
  sm90_few::start_append(shared);
  ptx::griddepcontrol_wait();
  if (threadIdx.x < sm90_few::kThreads) sm90_few::append_cluster(p.rows, shared, cluster);
#else
  __trap();  // compiled for another architecture; finish_few_reject() refuses those
#endif
}

}  // namespace dsv4::attention_in_kernel::query
