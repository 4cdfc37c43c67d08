// The kernel of query.h.
//
// Problem    c = Q8(rms_norm(latent)); a CTA has 128 rows of wq_b or of the indexer's and all of K,
//            so there are no partial sums. A cluster of 4 CTAs has a query head or 4 indexer heads.
//            The first clusters append rows (append_cluster.cuh), which take less time
// Bound      reading the weights: 128 KB per CTA at K = 1024
// Tiles      a slab is 128 rows x 128 columns of FP8 (16 KB), a stage of the ring: two tiles of
//            wgmma with weights as M (64 rows) and tokens as N (8 to 64). Products of a slab
//            start at zero and are added in f32 times the scales of its columns, the official
//            arithmetic. A slab of bit planes has 256 columns (weights/kbit_planes)
// Roles      warps 0 - 3, 4 - 7: a tile each | warp 8, lane 0: copies | warp 9: cos and sin
// Latents    every CTA normalizes and quantizes all of them, or copies the codes that
//            normalize_kernel has stored (query_latent.cuh): of up to 8 tokens all of them, of more
//            a slab of codes beside each slab of weights, in the ring
// Order      the ring is filled before the wait for the previous kernel
// Exchange   one sum of squares per token and rank of a head, to all ranks (st.async), added in
//            rank order; cos and sin, of which each CTA computes those of a quarter of the tokens,
//            or loads what normalize_kernel has stored.
//            Bits of a token depend neither on the others nor on how many there are
// Barriers   full[s]    1 + bytes | producer   | consumers
//            empty[s]   256       | consumers  | producer
//            exchanged  1 + bytes | all ranks  | consumers
//            rotated    1 + bytes | all ranks  | warps 4 - 7, where rows rotate
//            x_full     1 + bytes | producer   | consumers, of stored codes that stay
//            named 1    256       | consumers  | consumers

#pragma once

#include "dsv4/device/ptx/fence.cuh"
#include "dsv4/device/ptx/griddep.cuh"
#include "dsv4/device/ptx/tensor_copy.cuh"
#include "dsv4/ops/gemm/sm90/small_m/consumer.cuh"
#include "dsv4/ops/model/attention_in/sm90_few/append_cluster.cuh"
#include "dsv4/ops/model/attention_in/sm90_few/query_epilogue.cuh"

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
template <class C>
class Producer {
 public:
  __device__ Producer(const Params& p, const Memory<C>& memory, const Work& work)
      : p_(p), memory_(memory), weight_(work.weight(p)), row_(work.row()) {}

  __device__ void init_barriers(const Work& work) const {
    for (int i = 0; i < p_.stages; ++i) memory_.full(i).init(1), memory_.empty(i).init(kConsumers);
    memory_.exchanged().init(1), memory_.rotated().init(1), memory_.x_full().init(1);
    ptx::fence_mbarrier_init();
    if (!work.is_index) expect(memory_.exchanged(), kRanks * C::kSummed * sizeof(float));
    if (work.rotates()) expect(memory_.rotated(), p_.tokens * kPairs * sizeof(float2));
  }
  __device__ void fill() {
    while (slab_ < min(p_.stages, p_.slabs)) copy_slab<false>();
  }
  // Stored codes of all latents, or of the columns whose slabs fill() copied.
  __device__ void copy_x() const {
    if constexpr (C::kStreamsX) {
      for (int slab = 0; slab < slab_; ++slab)
        copy_codes(memory_.x_of_slab(slab), slab, memory_.full(slab));
    } else {
      ptx::Mbarrier& full = memory_.x_full();
      full.expect_tx(p_.groups * C::kXBytes);
      for (int group = 0; group < p_.groups; ++group)
        copy_codes(ptx::smem_address(memory_.x(group)), group, full);
      full.arrive();
    }
  }
  __device__ void stream() {
    while (slab_ < p_.slabs) {
      memory_.empty(ring_.stage).wait(ring_.phase ^ 1);
      copy_slab<C::kStreamsX>();
    }
  }

 private:
  static __device__ void expect(ptx::Mbarrier& barrier, uint32_t bytes) {
    barrier.expect_tx(bytes);
    barrier.arrive();
  }
  __device__ void copy_codes(uint32_t to, int group, ptx::Mbarrier& full) const {
    ptx::cp_async_bulk_tensor_2d(to, &p_.codes, full, group * kGroup, 0);
  }
  // kWithX: with the codes of its columns, which otherwise come later, or are not streamed.
  template <bool kWithX>
  __device__ void copy_slab() {
    ptx::Mbarrier& full = memory_.full(ring_.stage);
    full.expect_tx(C::kStage);
    ptx::cp_async_bulk_tensor_2d_evict_first(memory_.slab(ring_.stage), &weight_.weight, full,
                                             slab_ * C::kBoxColumns, row_);
    if constexpr (kWithX) copy_codes(memory_.x_of_slab(ring_.stage), slab_, full);
    full.arrive();
    ++slab_;
    ring_.next(p_.stages);
  }

  const Params& p_;
  const Memory<C>& memory_;
  const Weight& weight_;
  const int row_;
  int slab_ = 0;
  sm90::RingCursor ring_;
};

// The scales of the CTA's rows that a thread holds, requested before the wait: of FP8, lane i has
// that of slab i.
template <class C>
struct Scales {
  gemm::PendingScale of_slab;

  __device__ Scales(const Params& p, const Work& work) {
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
    if (work.exists(p) && lane < p.slabs)
      of_slab = gemm::block_scale(work.weight(p), work.row(), lane);
  }
};
template <class C>
requires(C::kBits > 0) struct Scales<C> {
  const gemm::Matrix& matrix;
  gemm::Tile tile;
  gemm::PlaneScales planes;
  int ordered = 0;  // slabs that are ordered

  __device__ Scales(const Params& p, const Work& work)
      : matrix(work.weight(p)), tile{.matrix = 0, .row = work.row(), .count = kRows} {
    planes.request(matrix, tile, 0, work.exists(p) ? p.slabs : 0, static_cast<int>(threadIdx.x));
  }
};

// The rows of the CTA times all latents.
template <class C>
__device__ void multiply(const Params& p, const Memory<C>& memory, const Scales<C>& scales,
                         Products<C>& products, int thread) requires(C::kBits == 0) {
  auto& sum = products.value;
#pragma unroll
  for (float& value : sum) value = 0;
  const int tile = thread / (kConsumers / 2) * gemm::kSlabSize;
  const float lane_scale = scales.of_slab.value();
  sm90::RingCursor ring;
  for (int slab = 0; slab < p.slabs; ++slab) {
    const float scale = __shfl_sync(~0u, lane_scale, slab);
    memory.full(ring.stage).wait(ring.phase);
    float part[C::kSums];
    const uint32_t codes =
        C::kStreamsX ? memory.x_of_slab(ring.stage) : ptx::smem_address(memory.x(slab));
    gemm::multiply_shared<__nv_fp8_e4m3, C::kTokens>(part, memory.slab(ring.stage) + tile, codes);
    memory.empty(ring.stage).arrive();
    ring.next(p.stages);
#pragma unroll
    for (int n = 0; n < C::kTokens / 8; ++n) {
      const float2 x = *reinterpret_cast<const float2*>(memory.x_scale() + slab * C::kTokens +
                                                        8 * n + thread % 4 * 2);
      const float2 factor{scale * x.x, scale * x.y};
#pragma unroll
      for (int i = 4 * n; i < 4 * n + 4; i += 2) {
        sum[i] = fmaf(part[i], factor.x, sum[i]);
        sum[i + 1] = fmaf(part[i + 1], factor.y, sum[i + 1]);
      }
    }
  }
}

// The rows of the CTA as bit planes times all latents. To save registers the products of one group
// are in flight at a time.
template <class C>
__device__ void multiply(const Params& p, const Memory<C>& memory, Scales<C>& scales,
                         Products<C>& products, int thread) requires(C::kBits > 0) {
  constexpr int kSlabs = gemm::PlaneScales::kSlabs;
  float sums[C::kTokens / 2][4] = {};
  sm90::RingCursor ring;
  for (int slab = 0; slab < p.slabs; ++slab) {
    if (slab % kSlabs == 0) {
      if (slab > 0) scales.planes.request(scales.matrix, scales.tile, slab, p.slabs, thread);
      scales.planes.advance();
    }
    memory.full(ring.stage).wait(ring.phase);
    const int group = slab * C::kGroups;
    gemm::add_slab<C, 1>(memory.planes(ring.stage), slab, ptx::smem_address(memory.x(group)),
                         memory.x_scale() + group * C::kTokens, scales.planes, sums, thread,
                         slab < scales.ordered, [&] {
                           memory.empty(ring.stage).arrive();
                           ring.next(p.stages);
                         });
  }
  gemm::add_blocks<C::kTokens>(sums, products.value);
#pragma unroll
  for (float& value : products.value) value *= scales.matrix.factor;
}

template <class C, bool kNormalizes>
__device__ void compute_queries(const Params& p) {
  const Memory<C> memory(p);
  const Work work(p);
  const bool exists = work.exists(p);
  const int thread = static_cast<int>(threadIdx.x), warp = thread / kWarp, lane = thread % kWarp;
  Producer<C> producer(p, memory, work);
  if (thread == kProducerWarp * kWarp) {
    producer.init_barriers(work);
    if (exists) producer.fill();
    if (!kNormalizes && C::kBits == 0) ptx::prefetch_tensormap(&p.codes);
  }
  if constexpr (C::kBits > 0)
    if (thread < kConsumers) gemm::clear_blocks<C, kConsumers>(memory.x(0), p.groups, thread);
  Scales<C> scales(p, work);
  LatentBatch<C> latents(p, memory, thread);
  if (kNormalizes && exists && thread < kConsumers) latents.prepare();
  __syncthreads();
  ptx::cluster_arrive_relaxed();
  ptx::cluster_wait();  // all barriers can count
  if constexpr (C::kBits > 0)
    if (exists && thread < kConsumers)
      scales.ordered = gemm::order_slabs<C>(min(p.stages, p.slabs), thread, [&](int stage) {
        memory.full(stage).wait(0);
        return memory.planes(stage);
      });
  ptx::griddepcontrol_wait();
  if (warp == kRotationWarp)
    return send_rotations(p, memory, work.rank, work.first_rotating(), work.end_rotating(p));
  if (!exists) return;
  if (warp == kProducerWarp) {
    if (lane > 0) return;
    if (!kNormalizes && C::kBits == 0) producer.copy_x();
    return producer.stream();
  }
  if constexpr (kNormalizes) {
    normalize_latents(latents);
  } else {
    load_latents(p, memory, thread);
  }
  Products<C> products;
  multiply(p, memory, scales, products, thread);
#pragma unroll
  for (float& value : products.value) value = bf16_step(value);
  if (work.is_index) {
    finish_index_head(p, memory, products, work.head, thread);
  } else {
    finish_head(p, memory, products, work.head, work.rank, thread);
  }
}

// grid: p.num_clusters() clusters. C: Config. kNormalizes: p.latent, else p.codes or code_values
template <class C, bool kNormalizes>
__global__ void __launch_bounds__(kThreads, C::kCtas)
    query_kernel(const __grid_constant__ Params p) {
#if __CUDA_ARCH_FEAT_SM90_ALL
  ptx::griddepcontrol_launch_dependents();
  const int cluster = static_cast<int>(blockIdx.x) / kRanks;
  if (cluster >= p.row_clusters) return compute_queries<C, kNormalizes>(p);
  auto& shared = *reinterpret_cast<sm90_few::Shared*>(ptx::dynamic_smem());
  sm90_few::start_append(shared);
  ptx::griddepcontrol_wait();
  if (threadIdx.x < sm90_few::kThreads) sm90_few::append_cluster(p.rows, shared, cluster);
#else
  __trap();  // compiled for another architecture; finish_few_reject() refuses those
#endif
}

}  // namespace dsv4::attention_in_kernel::query
