// Products of the input x of a block, in the kernel that also finishes the boundary before the
// block (ops/model/hc_boundary): a launch less between mix and the products, for few tokens.
//
// Problem    x = rms_norm(sum_j pre_j X_j) from the partial sums of mix (hc_boundary/sm90_few);
//            each CTA computes the columns that its rank multiplies
// Bound      latency: sums and X from L2, one exchange between the ranks of a cluster
// Tiles      half a warp has the same group of 128 columns of every token, a lane 8 of them; warp i
//            computes the gates `pre` of token i
// Exchange   every rank sends the sum of squares of each of its groups to all ranks, which add them
//            in the order of finish.cuh: the bits are those of a boundary on its own
// Gates      post and Sinkhorn, which are needed three kernels later: CTAs of one more cluster
// Barriers   x_full     1 + bytes | all ranks          | consumers

#pragma once

#include "dsv4/ops/gemm/sm90/small_m/two_formats.cuh"
#include "dsv4/ops/gemm/x/boundary_gates.cuh"

namespace dsv4::gemm {

inline constexpr int kBoundaryTokens = 4;
static_assert(kBoundaryTokens <= kConsumers / kWarp && boundary::kGroup == kScaleColumns);

// Bytes of shared memory: pre [t, 4], squares [t, groups], f32. columns: of x.
inline int boundary_bytes(int64_t tokens, int64_t columns) {
  const auto groups = static_cast<int>(columns) / boundary::kGroup;
  return static_cast<int>(tokens) * (groups + boundary::kStreams) * 4;
}

// x as it is multiplied, from what mix leaves.
template <class C, class P>
struct LoadBoundary {
  const P& params;
  const boundary::Params& from;
  bool stores_x;  // of one cluster: x goes to global memory, too

  __device__ bool copies() const { return false; }

  __device__ void operator()(const Memory<C>& memory, const Share& share, int, int tokens,
                             int thread) const {
    const int group = thread / kRuns, run = thread % kRuns;
    const int warp = thread / kWarp, lane = thread % kWarp;
    const int groups = groups_of(share.slabs), first = groups_of(share.first_slab);
    const bool exists = group < groups;  // else the lanes repeat the last
    const int column = (first + min(group, groups - 1)) * boundary::kGroup + run * kRun;
    float* const pre = memory.prologue();
    float* const squares = pre + tokens * boundary::kStreams;
    const Run norm = Run::load(static_cast<const bf16*>(from.norm) + column);
    const boundary::PreGate gates(from, min(warp, tokens - 1), lane);
    if (thread == 0) {
      memory.x_full().expect_tx(tokens * from.groups * sizeof(float));
      memory.x_full().arrive();
    }
    if constexpr (C::kBits > 0)  // a barrier follows
      clear_blocks<C, kConsumers>(memory.x(0), groups, thread);
    ptx::griddepcontrol_wait();

    boundary::StreamRuns next;
    next.load(from, 0, column);
    if (warp < tokens) {
      const float gate = gates.compute(from, lane);
      if (lane % boundary::kGateLanes == 0 && lane < boundary::kGateLanes * boundary::kStreams)
        pre[warp * boundary::kStreams + lane / boundary::kGateLanes] = gate;
    }
    ptx::barrier_sync(kConsumerBarrier, kConsumers);
    // The latest token first, so that the loops need no unrolling: instructions that are fetched
    // after the wait cost more than moves.
    Run x[kBoundaryTokens];
#pragma unroll 1
    for (int i = 0; i < tokens; ++i) {
      const boundary::StreamRuns streams = next;
      if (i + 1 < tokens) next.load(from, i + 1, column);
#pragma unroll
      for (int k = kBoundaryTokens - 1; k > 0; --k) x[k] = x[k - 1];
      x[0] = streams.combined(reinterpret_cast<const float4*>(pre)[i]);
      const float square = group_square(x[0]);
      if (exists && run < params.split.ranks())
        ptx::st_async(reinterpret_cast<uint32_t*>(squares + i * from.groups + first + group), run,
                      __float_as_uint(square), memory.x_full());
    }
    memory.x_full().wait_acquire_cluster(0);
#pragma unroll 1
    for (int i = tokens - 1; i >= 0; --i) {
      const float root = boundary::root_of(from, squares + i * from.groups, run);
      float weights[kRun];
      norm.widen(weights);
      const Run out = boundary::normalized(x[0], root, weights);
#pragma unroll
      for (int k = 0; k + 1 < kBoundaryTokens; ++k) x[k] = x[k + 1];
      if (stores_x && exists) out.store(from.x + i * from.x_stride + column);
      put(memory, group, i, run, exists, out);
    }
    ptx::fence_proxy_async();
    ptx::barrier_sync(kConsumerBarrier, kConsumers);
  }

 private:
  // Groups of 128 columns in `slabs` slabs.
  __device__ static int groups_of(int slabs) {
    constexpr int kColumns = slab_columns(C::kFormat);
    return kColumns < boundary::kGroup ? slabs / (boundary::kGroup / kColumns)
                                       : slabs * (kColumns / boundary::kGroup);
  }
  // Where wgmma reads it.
  __device__ static void put(const Memory<C>& memory, int group, int token, int run, bool exists,
                             const Run& x) {
    if constexpr (C::kFormat == Format::kBf16) {
      constexpr int kSlabRuns = slab_columns(C::kFormat) / kRun;
      unsigned char* const slab = memory.x(kRuns / kSlabRuns * group + run / kSlabRuns);
      if (exists) *reinterpret_cast<Run*>(slab + swizzled(token, run % kSlabRuns, 0)) = x;
    } else {
      const CodesOfRun q(x);
      if (!exists) return;
      if constexpr (C::kBits > 0) {
        store_blocks<C::kBits>(memory.x(group), token, run, q.codes);
      } else {
        *reinterpret_cast<uint2*>(memory.x(group) + swizzled(token, run / 2, run % 2 * 8)) =
            q.codes;
      }
      if (run == 0) memory.x_scale()[group * C::kTokens + token] = ue8m0_to_f32(q.scale);
    }
  }
};

// P: a TwoFormatsOf.
template <class P>
struct WithBoundary {
  P formats;
  boundary::Params boundary;
};

// The grid has one cluster more than the two products. C: Config of the first clusters, of all
// tokens.
template <class C, class P, class Q8Epilogue, class Bf16Epilogue>
__global__ void __launch_bounds__(kThreads, C::kCtasOfSm)
    boundary_kernel(const __grid_constant__ WithBoundary<P> params) {
#if __CUDA_ARCH_FEAT_SM90_ALL
  ptx::griddepcontrol_launch_dependents();
  const P& formats = params.formats;
  const int bits = formats.q8.split.rank_bits, cluster = static_cast<int>(blockIdx.x) >> bits;
  const int rank = static_cast<int>(blockIdx.x) - (cluster << bits);
  if (cluster < formats.q8.split.clusters() + formats.bf16.split.clusters()) {
    multiply_two_formats<C, Q8Epilogue, Bf16Epilogue>(
        formats, cluster, rank, [&]<class D, class Q>(D, const Q& of_format) {
          return LoadBoundary<D, Q>{of_format, params.boundary, cluster == 0};
        });
  } else {
    ptx::griddepcontrol_wait();
    for (int token = rank; token < params.boundary.t; token += 1 << bits) {
      if (token > rank) __syncthreads();
      boundary::finish_gates(params.boundary, token, reinterpret_cast<float*>(ptx::dynamic_smem()));
    }
  }
#else
  __trap();  // compiled for another architecture; reject() refuses those
#endif
}

// Calls body(config) of an instance of the first clusters, for up to kBoundaryTokens.
template <class Body>
void with_boundary_config(Format format, int tokens, const Body& body) {
  if (format == Format::kKbit4) return with_plane_tokens<Format::kKbit4>(tokens, body);
  if (format == Format::kKbit5) return with_plane_tokens<Format::kKbit5>(tokens, body);
  body(Config<Format::kFp8, 8>{});
}

// Returns nullptr, or why the boundary has to be finished before. columns: of x.
inline const char* reject_boundary(int64_t tokens, int64_t columns, const TwoFormats& call) {
  const int64_t ranks = call.split.q8.ranks();
  if (tokens > kBoundaryTokens) return "more than 4 tokens";
  if (ranks == 1 ||
      columns % (ranks * std::max(boundary::kGroup, slab_columns(call.q8.format))) != 0)
    return "ranks without whole groups";
  if (columns / (ranks * boundary::kGroup) > kConsumers / kRuns)
    return "more groups of columns than half warps";
  return nullptr;
}

}  // namespace dsv4::gemm
