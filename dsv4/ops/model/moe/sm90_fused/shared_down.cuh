// y = bf16(w2 Q8(h)) of the shared expert, in the ring of the routed experts: its weights are known
// before the routing is, so they are on their way while the CTA waits and routes.
//
// A CTA has some rows and all columns. Warpgroup r computes what rank r of a cluster of gemm/sm90
// computes, with the same instructions, and the epilogue adds them in the same order: equal bits.

#pragma once

#include "dsv4/device/ptx/tensor_copy.cuh"
#include "dsv4/ops/gemm/sm90/experts_e4m3/multiply.cuh"
#include "dsv4/ops/gemm/sm90/small_m/consumer.cuh"
#include "dsv4/ops/gemm/x/convert.cuh"
#include "dsv4/ops/model/moe/sm90_fused/config.cuh"

namespace dsv4::moe_kernel::sm90_fused {

// The tile of this CTA in the ring. FP8: wgmma reads 64 rows, those of the next slab are not used.
template <class S, class Config, int kRows_>
struct SharedTile {
  using C = Config;
  static constexpr int kRows = kRows_;
  static constexpr int kSlabBytes = gemm::slab_bytes(C::kFormat) * kRows / gemm::kTileRows;
  static constexpr int kStageSlabs = S::kStageBytes / kSlabBytes;
  static constexpr int kMostSlabs = kHiddenTiles / C::kGroups;
  static_assert((kMostSlabs + kStageSlabs - 1) / kStageSlabs < S::kStages, "reads past the ring");

  const gemm::Params<1>& p;
  int tile;  // negative: none

  __device__ bool exists() const { return tile >= 0; }
  __device__ int items() const { return exists() ? 1 : 0; }  // uses of the buffers
  __device__ int stages() const {
    return exists() ? (p.split.slabs + kStageSlabs - 1) / kStageSlabs : 0;
  }
  __device__ e4m3::RingPlace<S> after() const { return {{.stage = stages()}}; }
  __device__ int row() const { return tile * kRows; }
  // Waits for a slab.
  __device__ const unsigned char* slab(int slab, S& shared) const {
    const int stage = slab / kStageSlabs;
    shared.full[stage].wait(0);
    return reinterpret_cast<const unsigned char*>(shared.stages[stage]) +
           slab % kStageSlabs * kSlabBytes;
  }

  // One thread.
  __device__ void copy(S& shared) const {
    for (int stage = 0, slab = 0; stage < stages(); ++stage) {
      const int end = min(slab + kStageSlabs, p.split.slabs);
      shared.full[stage].expect_tx((end - slab) * kSlabBytes);
      for (int i = 0; slab < end; ++slab, ++i)
        ptx::cp_async_bulk_tensor_2d_evict_first(
            ptx::smem_address(shared.stages[stage]) + i * kSlabBytes, &p.matrix[0].weight,
            shared.full[stage], slab * C::kBoxColumns, row());
      shared.full[stage].arrive();
    }
  }
};

// The part of a math warpgroup.
template <class S, class SharedTile>
class SharedDown {
  using C = typename SharedTile::C;

 public:
  // Requests scales of weights. FP8: lane i has that of slab i of the rank.
  __device__ SharedDown(const SharedTile& tile, int group)
      : tile_(tile), group_(group), share_(tile.p, 0, group) {
    slabs_ = tile.exists() && group < tile.p.split.ranks() ? share_.slabs : 0;
    const gemm::Matrix& matrix = tile.p.matrix[0];
    if constexpr (C::kBits > 0) {
      const gemm::Tile rows{
          .matrix = 0, .row = tile.row(), .count = min(SharedTile::kRows, matrix.n - tile.row())};
      planes_.request(matrix, rows, share_.first_slab, share_.first_slab + slabs_, row_thread());
    } else {
      const int lane = static_cast<int>(threadIdx.x) % kWarp;
      if (lane < slabs_) scale_ = gemm::block_scale(matrix, tile.row(), share_.first_slab + lane);
    }
  }
  // h of a thread: 8 columns of a token. After the wait.
  __device__ void load() {
    if (own_group() < slabs_ * C::kGroups && token() < tile_.p.tokens)
      run_ =
          gemm::Run::load(static_cast<const bf16*>(tile_.p.x_values) + token() * tile_.p.x_stride +
                          (share_.first_slab * C::kGroups + own_group()) * gemm::kScaleColumns +
                          thread() % kRuns * gemm::kRun);
  }
  // All threads of the group; a fence and a barrier follow.
  __device__ void store(S& shared) const {
    const gemm::CodesOfRun q(run_);
    if (own_group() >= slabs_ * C::kGroups) return;
    const int to = first_tile() + own_group(), run = thread() % kRuns;
    unsigned char* const codes = &shared.x[to].codes[0][0];
    if constexpr (C::kBits > 0) {
      gemm::store_blocks<C::kBits>(codes, token(), run, q.codes);
    } else {
      *reinterpret_cast<uint2*>(codes + gemm::swizzled(token(), run / 2, run % 2 * 8)) = q.codes;
    }
    if (run == 0) shared.x_scale[to][token()] = ue8m0_to_f32(q.scale);
  }
  // Rows and tokens as wgmma leaves them: 16 rows of a warp, of which the first two have some.
  __device__ float4 multiply(S& shared) {
    float acc[4] = {};
    if constexpr (C::kBits > 0) {
      add_planes(shared, acc);
    } else {
      add_codes(shared, acc);
    }
    __syncwarp();
    if (threadIdx.x % kWarp == 0)
      for (int stage = 0; stage < tile_.stages(); ++stage) shared.empty[stage].arrive();
    return {acc[0], acc[1], acc[2], acc[3]};
  }

 private:
  static constexpr int kRuns = gemm::kRuns;
  static_assert(kMaxTokens * kRankGroups * kRuns == kGroupThreads);

  __device__ void add_codes(S& shared, float (&acc)[4]) const {
    const float scales = scale_.value();
#pragma unroll 1
    for (int i = 0; i < slabs_; ++i) {
      const float scale = __shfl_sync(~0u, scales, i);
      const unsigned char* const slab = tile_.slab(share_.first_slab + i, shared);
      float part[4];
      gemm::multiply_shared<__nv_fp8_e4m3, kPairs>(part, ptx::smem_address(slab),
                                                   ptx::smem_address(shared.x + first_tile() + i));
      const float2 x =
          *reinterpret_cast<const float2*>(shared.x_scale[first_tile() + i] + thread() % 4 * 2);
#pragma unroll
      for (int j = 0; j < 4; ++j) acc[j] = fmaf(part[j], scale * (j % 2 == 0 ? x.x : x.y), acc[j]);
    }
  }
  __device__ void add_planes(S& shared, float (&acc)[4]) {
    static_assert(sizeof(shared.x[0]) == C::kXBytes &&
                  kRankGroups / C::kGroups <= gemm::PlaneScales::kSlabs);
    float sums[1][4] = {};
    planes_.advance();
#pragma unroll 1
    for (int i = 0; i < slabs_; ++i) {
      const int tile = first_tile() + i * C::kGroups;
      gemm::add_slab<C, 1, kPairs>(tile_.slab(share_.first_slab + i, shared), i,
                                   ptx::smem_address(shared.x + tile), shared.x_scale[tile],
                                   planes_, sums, row_thread(), false, [] {});
    }
    gemm::add_blocks<C::kTokens>(sums, acc);
#pragma unroll
    for (float& sum : acc) sum *= tile_.p.matrix[0].factor;
  }

  __device__ static int thread() {
    return static_cast<int>(threadIdx.x) % kGroupThreads;
  }
  // The index among the warps that have the rows; the others repeat them.
  __device__ static int row_thread() {
    return static_cast<int>(threadIdx.x) % (SharedTile::kRows / gemm::kUnitRows * kWarp);
  }
  __device__ static int token() {
    return thread() / (kRankGroups * kRuns);
  }
  // The group of 128 columns, in the rank, that this thread has.
  __device__ static int own_group() {
    return thread() / kRuns % kRankGroups;
  }
  __device__ int first_tile() const {
    return kXTiles + group_ * kRankGroups;
  }

  const SharedTile& tile_;
  int group_;
  gemm::Share share_;
  int slabs_;
  gemm::PendingScale scale_;  // of FP8
  gemm::PlaneScales planes_;  // of bit planes
  gemm::Run run_{};           // of h
};

// An epilogue warp: the sums of a strip of 16 rows, which are the first use of a buffer.
template <class S>
__device__ float4 take_shared(int ranks, int strip, int lane, S& shared) {
  ptx::barrier_sync(e4m3::filled_barrier(0), e4m3::kFilledThreads);
  float4 sum = shared.partials[0].sums[strip][lane];
  for (int rank = 1; rank < ranks; ++rank) {
    const float4 part = shared.partials[0].sums[rank * e4m3::kGroupWarps + strip][lane];
    sum.x += part.x, sum.y += part.y, sum.z += part.z, sum.w += part.w;
  }
  shared.drained[0].arrive();
  return sum;
}

// An epilogue warp: rounds and stores a strip.
template <class S, class SharedTile>
__device__ void finish_shared(const SharedTile& tile, S& shared) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int strip = static_cast<int>(threadIdx.x) / kWarp - e4m3::kMathWarps;
  const float4 sum = take_shared(tile.p.split.ranks(), strip, lane, shared);
  if (lane % 4 != 0) return;  // columns of no token
  const gemm::Matrix& matrix = tile.p.matrix[0];
  const float values[4] = {sum.x, sum.y, sum.z, sum.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int row = tile.row() + strip * gemm::kUnitRows + lane / 4 + i / 2 * 8;
    if (i % 2 < tile.p.tokens && row < matrix.n)
      static_cast<bf16*>(matrix.out)[i % 2 * matrix.out_stride + row] = from_float<bf16>(values[i]);
  }
}

}  // namespace dsv4::moe_kernel::sm90_fused
