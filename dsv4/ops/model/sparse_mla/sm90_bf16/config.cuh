// Tiles, parameters, work tiles and shared memory of the sm90_bf16 kernel (kernel.cuh).

#pragma once

#include <cstdint>

#include "dsv4/device/ptx/mbarrier.cuh"
#include "dsv4/device/sm90/ring.cuh"
#include "dsv4/device/sm90/tile_scheduler.cuh"
#include "dsv4/device/sm90/warpgroup.cuh"
#include "dsv4/ops/model/sparse_mla/index_lists.cuh"

namespace dsv4::sparse_mla_kernel::sm90_bf16 {

using sm90::kWarpgroup;

constexpr int kTileHeads = 64, kTileKeys = 64;
// A panel: 64 keys or heads x 64 dims, rows of 128 bytes, one 128-byte-swizzled wgmma operand.
constexpr int kPanelDims = 64, kPanelRow = 2 * kPanelDims, kPanelBytes = kTileKeys * kPanelRow;
constexpr int kValuePanels = 8;  // d_v = 512; the ninth panel (RoPE of V3.2) is key only
constexpr int kQuarters = 4;     // of a key tile: two value panels each
constexpr int kDimV = kValuePanels * kPanelDims;
constexpr int kHalfDims = kDimV / 2;  // output dims of a consumer warpgroup
constexpr int kWarpgroupWarps = kWarpgroup / kWarp;
constexpr int kThreads = 3 * kWarpgroup;  // two consumer warpgroups, then the producer
constexpr int kProducerRegisters = 72;
constexpr int kConsumerRegisters = sm90::consumer_registers(kProducerRegisters);

struct Params {
  PagedList window, compressed;
  const bf16* q;      // [b, s_q, h, d]
  void* out;          // [b, s_q, h, 512] bf16 or f32
  float* lse;         // [b, h, s_q] or null
  float* max_logits;  // [b, h, s_q] or null
  const float* sink;  // [h] or null
  QueryStrides q_at, out_at, lse_at, max_at;
  float scale;
  bool normalized;
  int heads;
  int tiles;  // work tiles: b * s_q * head_groups
  Divisor head_groups, s_q;
};

// A launch of one kernel instance (instance.cu).
struct Instance {
  void (*kernel)(Params);
  int64_t smem_bytes;
};
template <int kPanels>
Instance instance(bool out_f32);

// A query and 64 of its heads.
struct WorkTile {
  int request, query, first_head;
  int window, compressed;  // indices of the lists that count
  const int32_t *window_indices, *compressed_indices;

  __device__ WorkTile(const Params& p, int index) {
    const sm90::QueryHeads at = sm90::locate_query_heads<kTileHeads>(p.head_groups, p.s_q, index);
    first_head = at.first_head;
    request = at.request;
    query = at.query;
    window = num_indices(p.window.list, request);
    compressed = num_indices(p.compressed.list, request);
    window_indices = indices(p.window.list);
    compressed_indices = indices(p.compressed.list);
  }

  // An even number, so that key tile i belongs to warpgroup i % 2 whatever came before: it is the
  // owner who fixes the order in which S adds up. A list with an odd number gets a tile without
  // keys, and so does a query without indices.
  __device__ int key_tiles() const {
    return 2 * max(1, (window + compressed + 2 * kTileKeys - 1) / (2 * kTileKeys));
  }

  __device__ int64_t at(const QueryStrides& strides, int head) const {
    return request * strides.request + query * strides.query + head * strides.head;
  }

 private:
  __device__ const int32_t* indices(const ListPointer& list) const {
    return list.indices + request * list.request_stride + query * list.query_stride;
  }
};

struct alignas(1024) Panel {
  uint8_t bytes[kPanelBytes];  // [64 keys or heads, 64 dims] bf16, swizzled
};

// Key tiles are counted over all work tiles of a CTA; key tile i uses buffer i % 2.
using KvState = sm90::PipelineState<2>;

template <int kPanels>
struct Smem {
  static constexpr bool kRope = kPanels > kValuePanels;

  Panel q[kPanels];
  Panel kv[2][kPanels];
  // From each thread of the warpgroup that owns a key tile to the same thread of the other: its
  // fragments of P, and the running row max and row sums of its two rows.
  uint4 p[kTileKeys / 16][kWarpgroup];
  float4 stats[kWarpgroup];
  uint16_t valid[2][kWarpgroupWarps];  // a bit per key of a buffer
  // See the barrier table in kernel.cuh.
  ptx::Mbarrier q_full, q_empty;
  ptx::Mbarrier kv_full[2][kQuarters], kv_empty[2][kQuarters];
  ptx::Mbarrier rope_empty[2];
  ptx::Mbarrier p_full[2][kWarpgroupWarps];

  __device__ void init() {
    q_empty.init(2 * kWarpgroupWarps);
    q_full.init(kWarpgroup);
    for (int b = 0; b < 2; ++b) {
      // The last quarter also covers `valid`.
      for (int quarter = 0; quarter < kQuarters; ++quarter) {
        const bool is_last = quarter == kQuarters - 1;
        kv_full[b][quarter].init(kWarpgroup + (is_last ? kWarpgroupWarps : 0));
      }
      for (ptx::Mbarrier& barrier : kv_empty[b]) barrier.init(kWarpgroupWarps);
      rope_empty[b].init(kWarpgroupWarps);
      for (ptx::Mbarrier& barrier : p_full[b]) barrier.init(kWarp);
    }
    ptx::fence_mbarrier_init();
  }
};

// A key tile is loaded, multiplied and freed in quarters, in the order in which they become free:
// first the dims of the warpgroup that owns the tile, then those of the other (2026-11-21: 10 %
// fewer clocks than one order for all tiles). The key-only panel becomes free first and belongs to
// quarter 0.
constexpr bool has_rope(int panels, int quarter) {
  return panels > kValuePanels && quarter == 0;
}
__device__ constexpr int first_panel(int quarter, int owner) {
  return (quarter < kQuarters / 2 ? owner : 1 - owner) * (kValuePanels / 2) + quarter % 2 * 2;
}

}  // namespace dsv4::sparse_mla_kernel::sm90_bf16
