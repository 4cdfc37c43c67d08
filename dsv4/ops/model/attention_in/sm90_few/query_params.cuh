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
#include "dsv4/ops/gemm/sm90/small_m/call.cuh"
#include "dsv4/ops/model/attention_in/sm90_few/append_params.cuh"
#include "dsv4/ops/model/attention_in/sm90_few/query.h"

namespace dsv4::attention_in_kernel::query {

inline constexpr int kRanks = sm90_few::kCtas;      // CTAs of a cluster
inline constexpr int kRows = 128;                   // of a weight, per CTA: two tiles of wgmma
inline constexpr int kGroup = gemm::kScaleColumns;  // columns of a latent with one scale
inline constexpr int kHeadWidth = kRanks * kRows, kIndexWidth = kRows;
inline constexpr int kPairs = 32, kRotated = 2 * kPairs;  // at the end of every head
inline constexpr int kConsumers = 256, kConsumerWarps = kConsumers / kWarp;
inline constexpr int kProducerWarp = kConsumerWarps, kRotationWarp = kProducerWarp + 1;
inline constexpr int kThreads = kConsumers + 2 * kWarp;
inline constexpr int kMinStages = 2, kMaxStages = 8, kMaxGroups = kWarp;

// A CTA's slab: two slabs of gemm/sm90.
constexpr int cta_slab_bytes(gemm::Format format) {
  return kRows / gemm::kTileRows * gemm::slab_bytes(format);
}
// Whether codes come through the ring. Those of the smallest tile, which CTAs may compute, stay.
constexpr bool streams_codes(gemm::Format format, int tokens) {
  return gemm::bits_of(format) == 0 && tokens > 8;
}
// A stage of the ring: a slab, and codes that are streamed.
constexpr int cta_stage_bytes(gemm::Format format, int tokens) {
  return cta_slab_bytes(format) +
         (streams_codes(format, tokens) ? gemm::x_group_bytes(format, tokens) : 0);
}
// CTAs of an SM. Sums and shared memory of 8 tokens take more of bit planes than of FP8, and of
// FP8 the sums of more than 32 tokens.
constexpr int ctas_of_sm(gemm::Format format, int tokens) {
  return tokens > 32 || (gemm::bits_of(format) > 0 && tokens > 2) ? 2 : 3;
}
// Tokens of a CTA, which has all of them; more than the smallest tile are stored as codes.
constexpr int tile_tokens(gemm::Format format, int64_t tokens) {
  return gemm::tile_tokens(format, tokens, true);
}
// Tokens that the sums of a thread stand for: the columns of a product are at least 8.
constexpr int summed_tokens(int tokens) {
  return tokens < 8 ? 8 : tokens;
}

// kFormat: of both weights. kTokens: 8, 16, 32, 48 or 64; 2 or 8 of bit planes.
template <gemm::Format kFormat, int kTokens>
struct Config : gemm::Config<kFormat, kTokens> {
  static constexpr int kSlab = cta_slab_bytes(kFormat), kStage = cta_stage_bytes(kFormat, kTokens);
  static constexpr bool kStreamsX = streams_codes(kFormat, kTokens);
  static constexpr int kSummed = summed_tokens(kTokens);
  static constexpr int kCtas = ctas_of_sm(kFormat, kTokens);
  // Groups of 128 columns of the latents in registers at a time.
  static constexpr int kLatentGroups = gemm::bits_of(kFormat) > 0 ? 16 : 32;
  static_assert(kLatentGroups <= kSummed * kConsumerWarps, "both have `squares`");
};

// One weight, [heads * width, k], with boxes of kRows rows.
struct Weight : gemm::Matrix {
  int heads = 0;
};

struct Params {
  Weight q, index;               // index.heads = 0: not wanted
  const bf16* latent;            // [t, k], not normalized; null: `codes` and their scales
  const bf16* norm;              // [k]
  CUtensorMap codes;             // Q8 of the normalized latents: boxes of a tile's tokens x 128
  const uint8_t* code_values;    // the same for bit planes, [t, k]
  const uint8_t* code_scales;    // [t, k / 128] E8M0
  float norm_eps, index_factor;  // index_factor: of the Hadamard transform
  const int32_t* positions;      // [t]
  const float* freqs;            // [kPairs]
  const float2* rotations;       // [t, kPairs] cos and sin of every token, with streamed codes
  bf16* out;                     // [t, q.heads, kHeadWidth]
  bf16* index_out;               // [t, index.heads, kIndexWidth]
  int tokens, groups;            // groups: k / 128
  int slabs, stages;             // of a weight, in the ring
  int row_clusters;              // the first clusters append rows
  sm90_few::AppendParams rows;
  gemm::Format format;  // of both weights

  int num_clusters() const { return row_clusters + q.heads + (index.heads + kRanks - 1) / kRanks; }
};

// Offsets in bytes. The ring is at 0.
struct Layout {
  int x, squares, exchange, x_scale, rotation, barriers, bytes;

  // tokens: of a tile.
  DSV4_HD constexpr Layout(gemm::Format format, int tokens, int groups, int stages)
      : x(stages * cta_stage_bytes(format, tokens)),
        squares(x +
                (streams_codes(format, tokens) ? 0 : groups * gemm::x_group_bytes(format, tokens))),
        exchange(squares + summed_tokens(tokens) * kConsumerWarps * 4),
        x_scale(exchange + kRanks * summed_tokens(tokens) * 4),
        rotation(x_scale + groups * tokens * 4),
        barriers(rotation + summed_tokens(tokens) * kPairs * 8),
        bytes(barriers + (2 * kMaxStages + 3) * 8) {}
};

// As many stages as leave room for the CTAs of an SM (228 KB, 1 KB reserved for each).
inline int stages_of(gemm::Format format, int tokens, int groups) {
  const int room = ctas_of_sm(format, tokens) == 3 ? 75 << 10 : 113 << 10;
  int stages = std::min(groups / gemm::slab_groups(format), kMaxStages);
  while (stages > kMinStages && Layout(format, tokens, groups, stages).bytes > room) --stages;
  return stages;
}

template <class C>
struct Memory {
  unsigned char* base;
  Layout at;

  __device__ explicit Memory(const Params& p)
      : base(ptx::dynamic_smem()), at(C::kFormat, C::kTokens, p.groups, p.stages) {}
  // [kRows][128 bytes], with the 128-byte swizzle; of bit planes without
  __device__ uint32_t slab(int stage) const { return ptx::smem_address(base) + stage * C::kStage; }
  __device__ unsigned char* planes(int stage) const { return base + stage * C::kSlab; }
  // Codes beside it, where they are streamed; as x().
  __device__ uint32_t x_of_slab(int stage) const { return slab(stage) + C::kSlab; }
  // [kXBoxes][kTokens][128 bytes] codes of a group, with the 128-byte swizzle
  __device__ unsigned char* x(int group) const { return base + at.x + group * C::kXBytes; }
  __device__ float* squares() const { return floats(at.squares); }
  // [kRanks][kSummed]: sums of squares of a head, from all ranks.
  __device__ float* exchange() const { return floats(at.exchange); }
  // [groups][kTokens]
  __device__ float* x_scale() const { return floats(at.x_scale); }
  // [kSummed][kPairs] cos, sin
  __device__ float2* rotation() const { return reinterpret_cast<float2*>(base + at.rotation); }
  // Slabs have arrived: bytes -> consumers.
  __device__ ptx::Mbarrier& full(int stage) const { return barriers()[stage]; }
  // Slabs are read: all consumers -> producer.
  __device__ ptx::Mbarrier& empty(int stage) const { return barriers()[kMaxStages + stage]; }
  // Sums of squares of all ranks have arrived: bytes -> consumers.
  __device__ ptx::Mbarrier& exchanged() const { return barriers()[2 * kMaxStages]; }
  // Rotations of all tokens have arrived: bytes -> the second consumer group.
  __device__ ptx::Mbarrier& rotated() const { return barriers()[2 * kMaxStages + 1]; }
  // Stored codes of all latents have arrived, where they are not streamed: bytes -> consumers.
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
  Weight w;
  static_cast<gemm::Matrix&>(w) = gemm::make_matrix(weight, {}, 1, 0, make_map, kRows);
  w.heads = heads;
  return w;
}

// The factor of the Hadamard transform.
inline float index_factor() {
  return static_cast<float>(1 / std::sqrt(static_cast<double>(kIndexWidth)));
}

// Latents that every CTA normalizes and quantizes itself. rows: null where they are not appended.
template <class MakeMap>
Params make_params(const AttentionInArgs& args, const ConstTensorView& latent,
                   const AppendInputs* rows, const MakeMap& make_map) {
  const AttentionInWeights& w = args.weights;
  Params p{.q = make_weight(w.wq_b, static_cast<int>(args.q.dim(1)), make_map),
           .index = {},
           .latent = latent.as<bf16>(),
           .norm = w.q_norm.as<bf16>(),
           .codes = {},
           .code_values = nullptr,
           .code_scales = nullptr,
           .norm_eps = args.norm_eps,
           .index_factor = index_factor(),
           .positions = args.positions.as<int32_t>(),
           .freqs = args.freqs.as<float>(),
           .rotations = nullptr,
           .out = args.q.as<bf16>(),
           .index_out = nullptr,
           .tokens = static_cast<int>(args.q.dim(0)),
           .groups = static_cast<int>(w.wq_b.k / kGroup),
           .slabs = 0,
           .stages = 0,
           .row_clusters = 0,
           .rows = {},
           .format = gemm::format_of(w.wq_b, {.quantize = true})};
  if (rows != nullptr) {
    p.rows = sm90_few::make_params(args, *rows);
    p.row_clusters = static_cast<int>(sm90_few::num_clusters(p.rows));
  }
  p.slabs = p.groups / gemm::slab_groups(p.format);
  p.stages = stages_of(p.format, tile_tokens(p.format, p.tokens), p.groups);
  if (args.index_q.rank == 0) return p;
  p.index = make_weight(w.indexer.wq_b, static_cast<int>(args.index_q.dim(1)), make_map);
  p.index_out = args.index_q.as<bf16>();
  return p;
}

// Latents that normalize_kernel stores.
struct StoredLatents {
  TensorView codes, scales;  // [t, k] E4M3, [t, k / 128] E8M0
  TensorView rotations;      // [t, 2 kPairs] f32; rank 0 where the CTAs compute them

  float2* rotation_pairs() const {
    return rotations.rank > 0 ? reinterpret_cast<float2*>(rotations.as<float>()) : nullptr;
  }
};
// Whether normalize_kernel stores rotations, too: as codes, where there are many tokens.
inline bool stores_rotations(gemm::Format format, int64_t tokens) {
  return streams_codes(format, tile_tokens(format, tokens));
}
// make: of a dtype and a shape.
template <class Make>
StoredLatents make_stored_latents(gemm::Format format, int64_t t, int64_t k, const Make& make) {
  StoredLatents latents{.codes = make(DType::kE4M3, {t, k}),
                        .scales = make(DType::kE8M0, {t, k / kGroup}),
                        .rotations = {}};
  if (stores_rotations(format, t)) latents.rotations = make(DType::kF32, {t, 2 * kPairs});
  return latents;
}
// Normalizes latents and stores them as `to` has places. In query.cu.
void normalize(Device& device, const AttentionInArgs& args, const ConstTensorView& latent,
               const StoredLatents& to);
template <class MakeMap>
void use_stored(Params& p, const StoredLatents& latents, const MakeMap& make_map) {
  p.latent = nullptr;
  p.code_values = latents.codes.as<uint8_t>();
  p.code_scales = latents.scales.as<uint8_t>();
  p.rotations = latents.rotation_pairs();
  if (gemm::bits_of(p.format) > 0) return;
  p.codes = make_map(tma_rows(latents.codes.data, DType::kE4M3, p.tokens, latents.codes.dim(1),
                              latents.codes.row_stride(), tile_tokens(p.format, p.tokens), kGroup,
                              TmaSwizzle::k128));
}

static_assert(sizeof(sm90_few::Shared) <= cta_slab_bytes(gemm::Format::kKbit4),
              "clusters that append have the ring");

}  // namespace dsv4::attention_in_kernel::query
