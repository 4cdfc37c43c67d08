// Shapes, arguments and shared memory of the kernel of query.h.

#pragma once

#include <cuda.h>

#include <algorithm>
#include <cmath>

#include "dsv4/device/math.cuh"
#include "dsv4/device/ptx/mbarrier.cuh"
#include "dsv4/device/ptx/shared_memory.cuh"
#include "dsv4/device/tma_map.h"
#include "dsv4/formats/weight.h"
#include "dsv4/ops/attention_in/sm90_few/append_params.cuh"
#include "dsv4/ops/attention_in/sm90_few/query.h"
#include "dsv4/ops/few_gemm/pending_scale.cuh"
#include "dsv4/ops/few_gemm/plan.h"

namespace dsv4::attention_in_kernel::query {

inline constexpr int kRanks = sm90_few::kCtas;  // CTAs of a cluster
inline constexpr int kRows = 128;               // of a weight, per CTA: two tiles of wgmma
inline constexpr int kSlabColumns = 128;        // of a weight: a row of 128 bytes with one scale
inline constexpr int kSlab = kRows * kSlabColumns;  // bytes
inline constexpr int kHeadWidth = kRanks * kRows, kIndexWidth = kRows;
inline constexpr int kPairs = 32, kRotated = 2 * kPairs;  // at the end of every head
inline constexpr int kConsumers = 256, kConsumerWarps = kConsumers / kWarp;
inline constexpr int kProducerWarp = kConsumerWarps, kRotationWarp = kProducerWarp + 1;
inline constexpr int kThreads = kConsumers + 2 * kWarp;
inline constexpr int kLatentGroups = 32;  // groups of 128 columns of the latents in registers
static_assert(kLatentGroups <= 8 * kConsumerWarps, "both have `squares`");
inline constexpr int kMinStages = 2, kMaxStages = 8, kMaxSlabs = kWarp;

// One weight, [heads * width, k] FP8.
struct Weight {
  CUtensorMap codes;            // boxes of kRows x kSlabColumns
  const void* scale = nullptr;  // [heads * width / 128, k / 128] E8M0|F32
  int64_t scale_stride = 0;
  bool scale_is_f32 = false;
  int heads = 0;

  // Of rows row .. row + 127 in slab `slab`.
  __device__ few_gemm::PendingScale scale_at(int row, int slab) const {
    return {scale, scale_is_f32, row / kSlabColumns * scale_stride + slab};
  }
};

struct Params {
  Weight q, index;               // index.heads = 0: not wanted
  const bf16* latent;            // [t, k], not normalized; null: `codes` and their scales
  const bf16* norm;              // [k]
  CUtensorMap codes;             // Q8 of the normalized latents: boxes of a tile's tokens x 128
  const uint8_t* code_scales;    // [t, k / 128] E8M0
  float norm_eps, index_factor;  // index_factor: of the Hadamard transform
  const int32_t* positions;      // [t]
  const float* freqs;            // [kPairs]
  bf16* out;                     // [t, q.heads, kHeadWidth]
  bf16* index_out;               // [t, index.heads, kIndexWidth]
  int tokens, slabs, stages;     // slabs: k / 128
  int row_clusters;              // the first clusters append rows
  sm90_few::AppendParams rows;

  int num_clusters() const { return row_clusters + q.heads + (index.heads + kRanks - 1) / kRanks; }
};

// Offsets in bytes. The ring is at 0.
struct Layout {
  int x, squares, exchange, x_scale, rotation, barriers, bytes;

  // tokens: of a tile.
  DSV4_HD constexpr Layout(int tokens, int slabs, int stages)
      : x(stages * kSlab),
        squares(x + slabs * tokens * kSlabColumns),
        exchange(squares + tokens * kConsumerWarps * 4),
        x_scale(exchange + kRanks * tokens * 4),
        rotation(x_scale + slabs * tokens * 4),
        barriers(rotation + tokens * kPairs * 8),
        bytes(barriers + (2 * kMaxStages + 3) * 8) {}
};

// As many stages as leave room for three CTAs on an SM (228 KB, 1 KB reserved for each).
inline int stages_of(int tokens, int slabs) {
  constexpr int kThird = 75 << 10;
  int stages = std::min(slabs, kMaxStages);
  while (stages > kMinStages && Layout(tokens, slabs, stages).bytes > kThird) --stages;
  return stages;
}

template <int kTokens>
struct Memory {
  unsigned char* base;
  Layout at;

  __device__ explicit Memory(const Params& p)
      : base(ptx::dynamic_smem()), at(kTokens, p.slabs, p.stages) {}
  // [kRows][128 bytes], with the 128-byte swizzle
  __device__ uint32_t slab(int stage) const { return ptx::smem_address(base) + stage * kSlab; }
  // [kTokens][128 bytes] codes of a slab, with the 128-byte swizzle
  __device__ unsigned char* x(int slab) const {
    return base + at.x + slab * kTokens * kSlabColumns;
  }
  __device__ float* squares() const { return floats(at.squares); }
  // [kRanks][kTokens]: sums of squares of a head, from all ranks.
  __device__ float* exchange() const { return floats(at.exchange); }
  // [slabs][kTokens]
  __device__ float* x_scale() const { return floats(at.x_scale); }
  // [kTokens][kPairs] cos, sin
  __device__ float2* rotation() const { return reinterpret_cast<float2*>(base + at.rotation); }
  // Slabs have arrived: bytes -> consumers.
  __device__ ptx::Mbarrier& full(int stage) const { return barriers()[stage]; }
  // Slabs are read: all consumers -> producer.
  __device__ ptx::Mbarrier& empty(int stage) const { return barriers()[kMaxStages + stage]; }
  // Sums of squares of all ranks have arrived: bytes -> consumers.
  __device__ ptx::Mbarrier& exchanged() const { return barriers()[2 * kMaxStages]; }
  // Rotations of all tokens have arrived: bytes -> the second consumer group.
  __device__ ptx::Mbarrier& rotated() const { return barriers()[2 * kMaxStages + 1]; }
  // Stored codes of all latents have arrived: bytes -> consumers.
  __device__ ptx::Mbarrier& x_full() const { return barriers()[2 * kMaxStages + 2]; }

 private:
  __device__ float* floats(int offset) const { return reinterpret_cast<float*>(base + offset); }
  __device__ ptx::Mbarrier* barriers() const {
    return reinterpret_cast<ptx::Mbarrier*>(base + at.barriers);
  }
};

// `make_map` makes a tensor map of a box: the driver's, or the emulator's.
template <class MakeMap>
Weight make_weight(const WeightView& weight, int heads, const MakeMap& make_map) {
  return {
      .codes = make_map(tma_rows(weight.data.data, weight.data.dtype, weight.n, weight.k,
                                 weight.data.row_stride(), kRows, kSlabColumns, TmaSwizzle::k128)),
      .scale = weight.scale.data,
      .scale_stride = weight.scale.row_stride(),
      .scale_is_f32 = weight.scale.dtype == DType::kF32,
      .heads = heads};
}

// Latents that every CTA normalizes and quantizes itself.
template <class MakeMap>
Params make_params(const AttentionInArgs& args, const ConstTensorView& latent,
                   const AppendInputs& rows, const MakeMap& make_map) {
  const AttentionInWeights& w = args.weights;
  Params p{.q = make_weight(w.wq_b, static_cast<int>(args.q.dim(1)), make_map),
           .index = {},
           .latent = latent.as<bf16>(),
           .norm = w.q_norm.as<bf16>(),
           .codes = {},
           .code_scales = nullptr,
           .norm_eps = args.norm_eps,
           .index_factor = static_cast<float>(1 / std::sqrt(static_cast<double>(kIndexWidth))),
           .positions = args.positions.as<int32_t>(),
           .freqs = args.freqs.as<float>(),
           .out = args.q.as<bf16>(),
           .index_out = nullptr,
           .tokens = static_cast<int>(args.q.dim(0)),
           .slabs = static_cast<int>(w.wq_b.k / kSlabColumns),
           .stages = 0,
           .row_clusters = 0,
           .rows = sm90_few::make_params(args, rows)};
  p.row_clusters = static_cast<int>(sm90_few::num_clusters(p.rows));
  p.stages = stages_of(few_gemm::tile_tokens(p.tokens), p.slabs);
  if (args.index_q.rank == 0) return p;
  p.index = make_weight(w.indexer.wq_b, static_cast<int>(args.index_q.dim(1)), make_map);
  p.index_out = args.index_q.as<bf16>();
  return p;
}

// Latents that normalize_kernel stores.
struct StoredLatents {
  TensorView codes, scales;  // [t, k] E4M3, [t, k / 128] E8M0
};
template <class MakeMap>
void use_stored(Params& p, const StoredLatents& latents, const MakeMap& make_map) {
  p.latent = nullptr;
  p.codes = make_map(tma_rows(latents.codes.data, DType::kE4M3, p.tokens, latents.codes.dim(1),
                              latents.codes.row_stride(), few_gemm::tile_tokens(p.tokens),
                              kSlabColumns, TmaSwizzle::k128));
  p.code_scales = latents.scales.as<uint8_t>();
}

static_assert(sizeof(sm90_few::Shared) <= kMinStages * kSlab, "clusters that append have the ring");

}  // namespace dsv4::attention_in_kernel::query
