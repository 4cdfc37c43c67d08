// The producer warpgroup: copies q and the listed KV entries into swizzled panels.
//
// Warp w has rows 16 w .. 16 w + 15 of a key tile; lanes 8 k .. 8 k + 7 copy the 128 bytes of a
// panel of row 16 w + 4 k + i, for i = 0 .. 3. Invalid rows are filled with zeros, because 0 * NaN
// is not 0. Indices are read one key tile ahead. Any instruction per key tile delays the copies: no
// division, and one list for a whole key tile where possible.

#pragma once

#include "dsv4/device/ptx/cp_async.cuh"
#include "dsv4/ops/model/sparse_mla/sm90_bf16/config.cuh"

namespace dsv4::sparse_mla_kernel::sm90_bf16 {

constexpr int kLaneRows = 4;

// The global addresses of a lane's rows.
struct Sources {
  const uint8_t* rows[kLaneRows];
  bool valid[kLaneRows];
};

// A key tile of a work tile.
struct KeyTile {
  WorkTile work;
  int index;
};

struct Producer {
  const Params& p;
  int lane, first_row;

  __device__ explicit Producer(const Params& params)
      : p(params),
        lane(static_cast<int>(threadIdx.x) % kWarp),
        first_row(static_cast<int>(threadIdx.x) % kWarpgroup / 8 * kLaneRows) {}

  __device__ int first_byte() const { return lane % 8 * 16; }

  // Starts the copies of one panel.
  __device__ void copy(const Sources& from, int panel, Panel& to) const {
    const uint32_t base = ptx::smem_address(&to);
#pragma unroll
    for (int i = 0; i < kLaneRows; ++i) {
      const int row = first_row + i;
      const uint32_t at = kPanelRow * row + 16 * (lane % 8 ^ row % 8);
      ptx::cp_async_zfill(base + at, from.rows[i] + panel * kPanelRow, from.valid[i]);
    }
  }

  __device__ Sources q_sources(const WorkTile& work) const {
    Sources from;
#pragma unroll
    for (int i = 0; i < kLaneRows; ++i) {
      const int head = work.first_head + first_row + i;
      from.valid[i] = head < p.heads;
      const bf16* row = p.q + work.at(p.q_at, from.valid[i] ? head : 0);
      from.rows[i] = reinterpret_cast<const uint8_t*>(row) + first_byte();
    }
    return from;
  }

  // The indices of this lane's rows; -1 past the end.
  __device__ void read_indices(const KeyTile& tile, int32_t (&indices)[kLaneRows]) const {
    const WorkTile& work = tile.work;
    const int end = work.window + work.compressed;
#pragma unroll
    for (int i = 0; i < kLaneRows; ++i) {
      const int position = tile.index * kTileKeys + first_row + i;
      const int32_t* list =
          position < work.window ? work.window_indices : work.compressed_indices - work.window;
      indices[i] = position < end ? list[position] : -1;
    }
  }

  template <int kDims>
  __device__ Sources kv_sources(const KeyTile& tile, const int32_t (&indices)[kLaneRows]) const {
    const int begin = tile.index * kTileKeys, window = tile.work.window;
    Sources from;
    if (begin >= window) {
      for_each_row([&](int i) { find<kDims>(p.compressed, indices[i], i, from); });
    } else if (begin + kTileKeys <= window) {
      for_each_row([&](int i) { find<kDims>(p.window, indices[i], i, from); });
    } else {
      for_each_row([&](int i) {
        find<kDims>(begin + first_row + i < window ? p.window : p.compressed, indices[i], i, from);
      });
    }
    return from;
  }

  // A bit for each of this warp's 16 rows.
  __device__ uint16_t valid_rows(const Sources& from) const {
    uint32_t bits = 0;
#pragma unroll
    for (int i = 0; i < kLaneRows; ++i) bits |= static_cast<uint32_t>(from.valid[i]) << i;
    return static_cast<uint16_t>(__reduce_or_sync(~0u, bits << (lane / 8 * kLaneRows)));
  }

 private:
  template <class Body>
  __device__ static void for_each_row(const Body& body) {
#pragma unroll
    for (int i = 0; i < kLaneRows; ++i) body(i);
  }

  template <int kDims>
  __device__ void find(const PagedList& list, int32_t index, int i, Sources& from) const {
    const PoolPointer& pool = list.list.pool;
    from.valid[i] = 0 <= index && index < pool.num_rows;
    const uint32_t row = from.valid[i] ? index : 0;  // an address that exists, but is not read
    const uint32_t page = list.page_entries.divide(row);
    const uint32_t entry = row - page * list.page_entries.divisor;
    from.rows[i] = pool.pages + page * pool.page_bytes + entry * kDims * 2 + first_byte();
  }
};

template <int kPanels>
__device__ void load_q(const Producer& producer, const WorkTile& work, uint32_t use,
                       Smem<kPanels>& smem) {
  const Sources from = producer.q_sources(work);
  smem.q_empty.wait((use + 1) % 2);
#pragma unroll
  for (int panel = 0; panel < kPanels; ++panel) producer.copy(from, panel, smem.q[panel]);
  smem.q_full.arrive_cp_async_noinc();
}

// key_tile: counted over all work tiles of the CTA.
template <int kPanels>
__device__ void load_kv(const Producer& producer, const Sources& from, uint32_t key_tile,
                        Smem<kPanels>& smem) {
  const KvState state = KvState::of_use(key_tile);
  const int buffer = state.stage;
  const uint32_t empty_phase = state.phase ^ 1;
  Panel* kv = smem.kv[buffer];
#pragma unroll
  for (int quarter = 0; quarter < kQuarters; ++quarter) {
    if (has_rope(kPanels, quarter)) {
      smem.rope_empty[buffer].wait(empty_phase);
      producer.copy(from, kValuePanels, kv[kPanels - 1]);
    }
    smem.kv_empty[buffer][quarter].wait(empty_phase);
    const int panel = first_panel(quarter, buffer);
    producer.copy(from, panel, kv[panel]);
    producer.copy(from, panel + 1, kv[panel + 1]);
    smem.kv_full[buffer][quarter].arrive_cp_async_noinc();
  }
  const uint16_t valid = producer.valid_rows(from);
  if (producer.lane == 0) {
    smem.valid[buffer][producer.first_row / 16] = valid;
    smem.kv_full[buffer][kQuarters - 1].arrive();
  }
}

template <int kPanels>
__device__ void produce(const Params& p, Smem<kPanels>& smem) {
  const Producer producer(p);
  int index = static_cast<int>(blockIdx.x);
  KeyTile next{WorkTile(p, index), 0};
  int32_t indices[kLaneRows];
  producer.read_indices(next, indices);
  for (uint32_t key_tile = 0, use = 0;; ++key_tile) {
    const KeyTile now = next;
    const Sources from = producer.kv_sources<kPanels * kPanelDims>(now, indices);
    if (++next.index == now.work.key_tiles()) {
      index += static_cast<int>(gridDim.x);
      if (index < p.tiles) next = {WorkTile(p, index), 0};
    }
    if (index < p.tiles) producer.read_indices(next, indices);
    load_kv(producer, from, key_tile, smem);
    if (now.index == 0) load_q(producer, now.work, use++, smem);
    if (index >= p.tiles) return;
  }
}

}  // namespace dsv4::sparse_mla_kernel::sm90_bf16
