// Sizes, KV formats, parameters and shared memory of the sm90_fp8 kernel (kernel.cuh).

#pragma once

#include <algorithm>

#include "dsv4/device/math.cuh"
#include "dsv4/device/ptx/mbarrier.cuh"
#include "dsv4/device/sm90/limits.h"
#include "dsv4/device/sm90/warpgroup.cuh"
#include "dsv4/formats/kv_layout.h"
#include "dsv4/ops/model/sparse_mla/index_lists.cuh"
#include "dsv4/ops/model/sparse_mla/sm90_fp8/plan.h"

namespace dsv4::sparse_mla_kernel::sm90_fp8 {

using sm90::kMaxSmem, sm90::kWarpgroup;

// Where dynamic shared memory starts in a CTA without static shared memory: after the bytes that
// the system reserves. Because it is fixed, matrix descriptors are compile-time constants.
constexpr uint32_t kSmemBase = 1024;
constexpr int kDimV = 512;                         // head dimension of V and of the output
constexpr int kDimTiles = kDimV / 64 / 2;          // 64-dim tiles of O per consumer warpgroup
constexpr int kRopePairs = 32;                     // of the output, in its last tile
constexpr int kTileKeys = 64;                      // keys of one QK^T tile
constexpr int kStageKeys = 32;                     // keys of one pipeline stage
constexpr int kConsumers = 2 * kWarpgroup;         // threads of the two consumer warpgroups
constexpr int kThreads = kConsumers + kWarpgroup;  // then the producer warpgroup

// Bytes from one KV entry to the next in shared memory: an odd number of 16-byte chunks, so that
// the same chunk of eight consecutive entries lies in different banks.
template <int kBytes>
inline constexpr int kOddChunks = kBytes + (kBytes / 16 % 2 == 0 ? 16 : 0);

// The bytes of one KV entry in memory and in shared memory (formats/kv_layout.h). kKeyScalesAt:
// offset of the scales for K from the start of the entry in shared memory.

// V4: 448 e4m3 codes and 64 bf16 RoPE values are both key and value; UE8M0
// scales at the end of the page.
struct KvFormatV4 {
  static constexpr KvLayout kLayout{};
  static constexpr int kCodes = kLayout.nope, kRope = kLayout.rope, kGroup = kLayout.group();
  static constexpr bool kRopeIsValue = true, kFloatScales = false;
  static constexpr int kRopeAt = kLayout.rope_offset(0), kEntryBytes = kLayout.entry_bytes();
  static constexpr int kStride = kOddChunks<kEntryBytes>;
  static constexpr int kKeyScalesAt = kEntryBytes;  // f16, in the padding between two entries
  static_assert(kStride - kKeyScalesAt >= 2 * (kCodes / kGroup + 1));
};

// V3.2: 512 codes are key and value, 64 RoPE values are key only; f32 scales between the two.
struct KvFormatV32 {
  static constexpr KvLayout kLayout = kV32Layout;
  static constexpr int kCodes = kLayout.nope, kRope = kLayout.rope, kGroup = kLayout.group();
  static constexpr bool kRopeIsValue = false, kFloatScales = true;
  static constexpr int kRopeAt = kLayout.rope_offset(0), kEntryBytes = kLayout.entry_bytes();
  static constexpr int kStride = kOddChunks<kEntryBytes>;
  static constexpr int kKeyScalesAt = kCodes;  // f32, as stored
};

// ldmatrix and bulk copies move 16-byte chunks, and a copy must not read past the entry.
template <class KvFormat>
inline constexpr bool kIsChunked = KvFormat::kRopeAt % 16 == 0 && KvFormat::kEntryBytes % 16 == 0 &&
                                   KvFormat::kKeyScalesAt % 16 == 0 &&
                                   KvFormat::kRopeAt + 2 * KvFormat::kRope == KvFormat::kEntryBytes;
static_assert(kIsChunked<KvFormatV4> && kIsChunked<KvFormatV32>);

// kOverflow: the entry has a scale above 2^7 (or NaN), so code * scale may not fit f16.
enum KeyState : uint8_t { kInvalid = 0, kValid = 1, kOverflow = 2 };

struct Params {
  PagedList window, compressed;
  const void* q = nullptr;      // [b, s_q, h_q, d_qk] bf16
  void* out = nullptr;          // [b, s_q, h_q, 512] bf16 or f32
  float* lse = nullptr;         // [b, h_q, s_q] or null
  float* max_logits = nullptr;  // [b, h_q, s_q] or null
  const float* sink = nullptr;  // [h_q] or null
  QueryStrides q_at{}, out_at{}, lse_at{}, max_at{};
  // The inverse RoPE of the output's last 64 dims, or null.
  const int32_t* positions = nullptr;  // [b, s_q]
  const float* freqs = nullptr;        // [kRopePairs]
  bool early = false;    // lists, lengths, positions and freqs may be read before the wait
  float log2_scale = 0;  // softmax scale * log2(e)
  bool normalized = true, out_f32 = false;
  int queries = 0, heads = 0;  // b * s_q, h_q
  Divisor s_q{};

  // Split-KV, as planned (plan.h).
  Divisor head_groups{};         // head groups (kHeads each) of a query
  Divisor split_keys{};          // list positions of a split, a multiple of kTileKeys
  int cluster_size = 1;          // CTAs of a cluster: splits of a query, empty ones included
  int fragments_per_cta = 0;     // fragments of O that each CTA combines
  bool kv_is_read_once = false;  // only one CTA reads it: L2 need not keep it
  bool invariant = false;        // Plan::invariant
  int window_positions = 0;      // list positions of the window, at least
};

// What a launch needs of one kernel instance (instance.cu): V4 or V3.2, and heads per CTA.
struct Instance {
  void (*kernel)(Params);
  int64_t smem_bytes;
};
// track_max: every key tile updates the row max; max_logits and unnormalized output need it.
template <class KvFormat, int kHeads>
Instance instance(bool track_max);

// --- shared memory ---

// Named barriers: of both consumer warpgroups; of consumer warpgroup w (kBarrierWarpgroup + w); of
// the producer warpgroup; of all threads, after the loads of the first indices have been issued.
constexpr int kBarrierConsumers = 1, kBarrierWarpgroup = 2, kBarrierProducer = 4,
              kBarrierIndices = 5;

// How a key tile changed the row max. kFirst: no key came before it, so nothing is rescaled.
enum class MaxUpdate { kNone, kFirst, kRescale };

constexpr int kNoOwner = -1;  // Smem::single_split_owner

// A CTA's partial O is num_fragments() fragments: four f16 of every consumer thread (combine.cuh).
constexpr int kFragmentBytes = kConsumers * 8;
constexpr int num_fragments(int heads) {
  return heads / 8 * kDimTiles;
}
// Number of neighboring fragments that one CTA always combines together.
constexpr int fragments_at_once(int heads) {
  return heads < 32 ? 1 : heads / 16;
}
// Fragments that one CTA of the cluster combines; the last CTAs may have fewer or none.
constexpr int fragments_per_cta(int heads, int splits) {
  const int groups = num_fragments(heads) / fragments_at_once(heads);
  return (groups + splits - 1) / splits * fragments_at_once(heads);
}
constexpr int max_partial_bytes(int heads) {
  int most = 0;
  for (int splits = 2; splits <= kMaxSplits; ++splits) {
    const int bytes = splits * fragments_per_cta(heads, splits) * kFragmentBytes;
    if (splits_fit(heads, splits) && bytes > most) most = bytes;
  }
  return most;
}

// One work tile: one query and one group of heads (work.cuh).
struct WorkTile {
  int index;           // among all work tiles of the launch
  int request, query;  // query: of the request, below s_q
  int first_head;
  int begin, end;      // list positions of this CTA's split
  int window;          // list positions of the window; the first
  int window_indices;  // window_indices of them have an index
  int num_splits;      // splits of this query that are not empty, at least 1

  __device__ int key_tiles() const { return (end - begin + kTileKeys - 1) / kTileKeys; }
};

// Softmax state of a work tile, in shared memory.
template <int kHeads>
struct TileState {
  WorkTile work;
  int overflow;  // if work.index + 1: a value does not fit f16, fallback_f32.cuh computes the tile
  // m: P = 2^(z - m), z = scale log2(e) S. Head 8 n + 2j + i is at (kHeads / 4) j + 2 n + i.
  alignas(16) float row_max[kHeads];
  int seen_max[kHeads];      // ordered_int() of the largest z so far
  float row_sum[8][kHeads];  // of P, per consumer warp
};

template <class KvFormat, int kHeads>
struct Smem {
  static constexpr int kQTiles = (KvFormat::kCodes + KvFormat::kRope) / 64;  // of 64 dims
  // Scale groups of V. V4 uses all but the last, which is padding as in memory.
  static constexpr int kGroups = kDimV / KvFormat::kGroup;
  static constexpr int kTileBytes = kHeads * 128;  // [heads, 64] of 16 bits (make_smem_desc_128B)
  // Tiles for q, and later for the partials that overwrite it.
  static constexpr int kQOrPartialTiles =
      std::max(kQTiles, (max_partial_bytes(kHeads) + kTileBytes - 1) / kTileBytes);
  // As many stages as fit, but at most ten: those hide the latency of memory.
  static constexpr int kStageBytes = kStageKeys * (KvFormat::kStride + 2 * kGroups + 1);
  static constexpr int kFree = kMaxSmem - (kQOrPartialTiles + 2) * kTileBytes - 8 * 1024;
  static constexpr int kStages = kFree / kStageBytes < 10 ? kFree / kStageBytes : 10;

  // q in tiles of 64 dims: f16 where K is e4m3, in the order of dims that
  // KeyOperand uses; bf16 for RoPE. After the last QK^T: partials that this
  // CTA combines, [splits, fragments_per_cta, thread] uint2.
  alignas(1024) uint8_t q[kQOrPartialTiles][kTileBytes];
  alignas(1024) uint8_t p[2][kTileBytes];  // P of the two key tiles, [heads, 64 keys] f16
  alignas(128) uint8_t kv[kStages][kStageKeys * KvFormat::kStride];  // entries, as stored
  // f16 scales of V; key k is at v_scale_at(k), so that a lane reads its four pairs of keys in one
  // load. The scales of K are in kv (KvFormat::kKeyScalesAt).
  alignas(16) __half v_scales[kStages][kGroups][kStageKeys];
  uint8_t key_state[kStages][kStageKeys];  // KeyState
  // Tile i of the CTA uses tiles[i % 2]: one warpgroup may store it while the other begins i + 1.
  // Tile i + 2 starts after both have released q of tile i + 1, and so have finished tile i.
  TileState<kHeads> tiles[2];
  // [key tile of the pair]: the factor for all earlier sums, and how the tile changed the row max.
  alignas(16) float rescale[2][kHeads];
  MaxUpdate max_update[2];
  // [warpgroup][head]: the factor for O before it is stored or sent as a partial. In a split that
  // takes the fp32 fallback: [0] the split's share, [1] 1 / the common divisor (combine.cuh).
  alignas(16) float out_scale[2][kHeads];
  // cos and sin of the inverse RoPE for the work tile's query. A warp of warpgroup 1 writes those
  // of its own eight pairs, and no other reads them.
  float2 rotation[kRopePairs];
  // Split-KV (combine.cuh): the only split with keys, or kNoOwner; (m, row sum)
  // of each split; the power of two by which O of each split is divided to
  // fit f16; the factor for the sum of the partials.
  int single_split_owner;
  uint2 split_stats[kMaxSplits][kHeads];
  uint32_t split_divisors[kMaxSplits][kHeads];
  alignas(16) float combine_scale[kHeads];
  // See the barrier table in kernel.cuh.
  ptx::Mbarrier kv_full[kStages], kv_empty[kStages], p_full[2], p_empty[2];
  ptx::Mbarrier max_ready[2];
  ptx::Mbarrier tile_full;
  ptx::Mbarrier q_empty;
  ptx::Mbarrier row_sum_full;
  ptx::Mbarrier partials_empty, stats_full, scales_ready, partials_full;
};

// Maps a float to an int so that ints compare as the floats do, for atomicMax().
__device__ inline int ordered_int(float x) {
  const int bits = __float_as_int(x);
  return bits >= 0 ? bits : bits ^ 0x7fffffff;
}
__device__ inline float from_ordered_int(int x) {
  return __int_as_float(x >= 0 ? x : x ^ 0x7fffffff);
}

// Index of a head in TileState::row_max and Smem::rescale.
template <int kHeads>
__device__ int row_max_at(int head) {
  return kHeads / 4 * (head % 8 / 2) + head / 8 * 2 + head % 2;
}
// Index of key k of 32 in Smem::v_scales.
__device__ inline int v_scale_at(int k) {
  return 8 * (k % 8 / 2) + 2 * (k / 8) + k % 2;
}

}  // namespace dsv4::sparse_mla_kernel::sm90_fp8
