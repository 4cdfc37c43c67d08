// The producer warpgroup: loads the CTA's KV entries into the pipeline, batch by batch, prepares
// every work tile but the first (load_q.cuh), and computes the split scales after the last QK^T
// (combine.cuh).
//
// A batch is what the consumers use in one iteration: one or two key tiles of two stages each. An
// entry is one bulk copy, issued by one lane, which also converts its scales to f16. Indices are
// read one batch before their entries are copied. A new work tile starts with the entries for which
// stages are free; then q is copied, once the last QK^T of the previous tile is complete; then the
// entries whose stages become free during the last PV of the previous tile.
//
// The producer takes issue slots from the consumers, so offsets are constants where possible.

#pragma once

#include <type_traits>

#include "dsv4/device/ptx/bulk_copy.cuh"
#include "dsv4/device/ptx/cache_hint.cuh"
#include "dsv4/device/ptx/griddep.cuh"
#include "dsv4/device/ptx/named_barrier.cuh"
#include "dsv4/device/sm90/ring.cuh"
#include "dsv4/ops/model/sparse_mla/sm90_fp8/combine.cuh"
#include "dsv4/ops/model/sparse_mla/sm90_fp8/load_q.cuh"

namespace dsv4::sparse_mla_kernel::sm90_fp8 {

constexpr int kBatchStages = 2 * kTileKeys / kStageKeys;
constexpr int kBatchKeys = kBatchStages * kStageKeys;

// The position of the next batch. A work tile without keys has one batch, of no stages.
template <int kHeads>
struct Cursor {
  WorkTile work;
  int position;  // list position of the next batch's first key
  // Base pointers: both are indexed with a list position.
  const int32_t *window_indices, *compressed_indices;

  __device__ Cursor(const Params& p, const WorkTile& first) : work(first) { begin(p); }
  __device__ bool done(const Params& p) const { return work.index >= num_tiles(p); }
  __device__ int stages() const {
    return min(kBatchStages, 2 * ((work.end - position + kTileKeys - 1) / kTileKeys));
  }
  __device__ bool is_first_of_tile() const { return position == work.begin; }
  __device__ void advance(const Params& p) {
    position += 2 * kTileKeys;
    if (position >= work.end) seek(p, next_tile(p, work.index));
  }
  __device__ int index(int at) const {
    const bool is_window = at < work.window;
    const int32_t* indices = is_window ? window_indices : compressed_indices;
    int index = -1;
    if (at < (is_window ? min(work.window_indices, work.end) : work.end)) index = indices[at];
    return index;
  }

 private:
  __device__ void seek(const Params& p, int tile) {
    work.index = tile;
    if (tile >= num_tiles(p)) return;
    work = make_tile<kHeads>(p, tile);
    begin(p);
  }
  __device__ void begin(const Params& p) {
    position = work.begin;
    window_indices = first_index(p.window.list, work);
    compressed_indices = first_index(p.compressed.list, work) - work.window;
  }
};

// Copies a batch: each lane copies one entry, each warp kRows entries of every
// stage that it works on. With kRows = 8 all warps work on the same stage,
// which fills soonest; with kRows = 32 a warp waits for one stage only.
template <class KvFormat, int kHeads, int kRows>
struct KvLoader {
  using S = Smem<KvFormat, kHeads>;
  using State = sm90::PipelineState<S::kStages>;
  using Scales =
      std::conditional_t<KvFormat::kFloatScales, uint4, uint2>;  // of an entry, as stored
  static constexpr int kWarpStages = kWarp / kRows;  // stages of a batch that a warp works on
  static_assert(kBatchKeys == kWarpgroup && (kWarpStages == kBatchStages || kWarpStages == 1));

  struct Batch {
    int stages;
    int index;  // of this lane's entry
    bool is_window;
  };

  const Params& p;
  S& smem;
  const int mine, row;  // this lane's stage of the batch, and entry of the stage

  // thread: index in the warpgroup
  __device__ KvLoader(const Params& params, S& memory, int thread)
      : p(params),
        smem(memory),
        mine(kWarpStages == 1 ? thread / kWarp : thread % kWarp / kRows),
        row(kWarpStages == 1 ? thread % kWarp : thread / kWarp * kRows + thread % kRows) {}

  // Starts to read the indices of the next batch.
  __device__ Batch read(const Cursor<kHeads>& at) const {
    const int position = at.position + mine * kStageKeys + row;
    return {
        .stages = at.stages(), .index = at.index(position), .is_window = position < at.work.window};
  }

  // Brings a batch into L2, but for what the previous kernel may still write there.
  __device__ void prefetch(const Batch& batch) const {
    const PagedList& list = batch.is_window ? p.window : p.compressed;
    if (mine >= batch.stages || !is_valid(list, batch.index)) return;
    const EntryPointers at = find_entry<KvFormat>(list, batch.index);
    ptx::cp_async_bulk_prefetch_l2(at.entry, KvFormat::kEntryBytes);
    if constexpr (!KvFormat::kFloatScales)
      ptx::cp_async_bulk_prefetch_l2(at.scales - reinterpret_cast<uintptr_t>(at.scales) % 16, 16);
  }

  // The first `free` stages of the batch need no long wait; between() runs before the wait for the
  // others. Scales are loaded before the copies are issued and used after the first of them, so
  // that both cost one memory latency. A lane whose stage comes after between() stores its scales
  // right after its copy.
  template <class Between>
  __device__ void copy(const Batch& batch, const State& state, int free,
                       const Between& between) const {
    const PagedList& list = batch.is_window ? p.window : p.compressed;
    const bool valid = mine < batch.stages && is_valid(list, batch.index);
    const EntryPointers at = find_entry<KvFormat>(list, batch.index);
    const Scales scales = load_scales(valid ? at.scales : dummy_address());
    const uint8_t* from = valid ? at.entry : nullptr;
    const int first = kWarpStages == 1 ? mine : 0, early = kWarpStages == 1 ? 1 : free;
#pragma unroll 1  // the code of an iteration over two key tiles hardly fits the instruction cache
    for (int i = 0; i < early; ++i) copy_entries(batch, first + i, state, from);
    if (mine < min(first + early, batch.stages)) finish_entry(state.stage_at(mine), valid, scales);
    between();
#pragma unroll 1
    for (int i = early; i < kWarpStages; ++i) {
      copy_entries(batch, first + i, state, from);
      if (mine == first + i && mine < batch.stages)
        finish_entry(state.stage_at(mine), valid, scales);
    }
  }

 private:
  // Any readable address, for a load whose result is not used.
  __device__ const uint8_t* dummy_address() const {
    return static_cast<const uint8_t*>(p.q);
  }

  __device__ Scales load_scales(const uint8_t* from) const {
    Scales scales;
    if (p.kv_is_read_once) {
      ptx::ld_global_evict_first(from, scales);
    } else {
      scales = *reinterpret_cast<const Scales*>(from);
    }
    return scales;
  }

  // Copies this warp's entries of stage s of the batch. Invalid ones become zeros, because P = 0
  // times NaN is not 0. The next bulk copy overwrites these zeros; the consumers issue the proxy
  // fence between the two, in store_p(). A copy may start before another thread's expect_tx(): that
  // thread has not arrived yet, so the phase stays open.
  __device__ void copy_entries(const Batch& batch, int s, const State& state,
                               const uint8_t* from) const {
    if (s >= batch.stages) return;
    const int stage = state.stage_at(s);
    smem.kv_empty[stage].wait(state.phase_at(s));
    ptx::Mbarrier& full = smem.kv_full[stage];
    const unsigned valid = __ballot_sync(~0u, s == mine && from != nullptr);
    if (s != mine) return;
    if (row % kRows == 0)
      full.expect_tx(static_cast<uint32_t>(__popc(valid) * KvFormat::kEntryBytes));
    const uint32_t to = ptx::smem_address(smem.kv[stage]) + row * KvFormat::kStride;
    if (from == nullptr) {
#pragma unroll 4
      for (int at = 0; at < KvFormat::kEntryBytes; at += 16) ptx::st_shared_v4_zero(to + at);
    } else {
      p.kv_is_read_once ? ptx::cp_async_bulk_evict_first(to, from, KvFormat::kEntryBytes, full)
                        : ptx::cp_async_bulk(to, from, KvFormat::kEntryBytes, full);
    }
  }

  // Stores what the bulk copy does not, the f16 scales and the state of the key, and arrives.
  __device__ void finish_entry(int stage, bool valid, const Scales& scales) const {
    const bool fits = store_scales(stage, valid ? scales : Scales{});
    smem.key_state[stage][row] = !valid ? kInvalid : fits ? kValid : kOverflow;
    smem.kv_full[stage].arrive();
  }

  // Converts scales to f16, exactly if they are powers of two from 2^-24 on.
  // Returns false if one is above 2^7 or NaN.
  __device__ bool store_scales(int stage, const Scales& scales) const {
    __half* to = &smem.v_scales[stage][0][v_scale_at(row)];
    __half2 pairs[S::kGroups / 2];  // of neighboring groups
    bool fits = true;               // false for NaN too
    if constexpr (KvFormat::kFloatScales) {
      const uint32_t all[4] = {scales.x, scales.y, scales.z, scales.w};
#pragma unroll
      for (int i = 0; i < S::kGroups / 2; ++i) {
        const float low = __uint_as_float(all[2 * i]), high = __uint_as_float(all[2 * i + 1]);
        pairs[i] = __floats2half2_rn(low, high);
        fits &= fabsf(low) <= 128.f && fabsf(high) <= 128.f;
      }
    } else {
      // UE8M0 is the exponent of an f32. The byte after the last scale is padding, of any value.
      const uint32_t all[2] = {scales.x, scales.y & 0xffffff};
#pragma unroll
      for (int i = 0; i < S::kGroups / 2; ++i) {
        const uint32_t codes = all[i / 2] >> (i % 2 * 16);
        const float low = __uint_as_float((codes & 0xff) << 23);
        const float high = __uint_as_float((codes & 0xff00) << 15);
        pairs[i] = __floats2half2_rn(low, high);
        fits &= fmaxf(low, high) <= 128.f;
      }
    }
#pragma unroll
    for (int i = 0; i < S::kGroups / 2; ++i) {
      to[2 * i * kStageKeys] = __low2half(pairs[i]);
      to[(2 * i + 1) * kStageKeys] = __high2half(pairs[i]);
    }
    if constexpr (!KvFormat::kFloatScales) {
      uint8_t* for_key = smem.kv[stage] + row * KvFormat::kStride + KvFormat::kKeyScalesAt;
      *reinterpret_cast<uint4*>(for_key) = {ptx::as_bits(pairs[0]), ptx::as_bits(pairs[1]),
                                            ptx::as_bits(pairs[2]), ptx::as_bits(pairs[3])};
    }
    return fits;
  }
};

template <class KvFormat, int kHeads>
struct Producer {
  using S = Smem<KvFormat, kHeads>;
  static_assert(S::kStages >= kBatchStages, "a batch waits for stages of earlier batches only");
  // Stages that are free while the previous batch is still in use.
  static constexpr int kFreeStages =
      S::kStages < 2 * kBatchStages ? S::kStages - kBatchStages : kBatchStages;
  // In a short ring of stages all warps work on one stage at a time.
  static constexpr int kRows = kFreeStages < kBatchStages ? kStageKeys / 4 : kStageKeys;
  static_assert(kRows < kStageKeys || kFreeStages == kBatchStages, "a warp's stage must be free");
  using Loader = KvLoader<KvFormat, kHeads, kRows>;

  struct Batch {
    int tile;  // index of the work tile that starts with this batch, or -1
    typename Loader::Batch keys;
  };

  const Params& p;
  S& smem;
  const Loader loader{p, smem, thread()};
  typename Loader::State state{.stage = 0, .phase = 1};  // of the next batch
  int tiles_opened = 0;

  __device__ Producer(const Params& params, S& memory) : p(params), smem(memory) {}

  __device__ void run(const WorkTile& first) {
    Cursor<kHeads> cursor(p, first);
    Batch now, next;
    bool more = read(cursor, now);
    if (p.early) {
      if (more) loader.prefetch(now.keys);
      ptx::griddepcontrol_wait();
    }
    // The consumers fetch q only after this barrier: if the indices were requested after the 64 KB
    // of q, they would arrive half a microsecond later.
    ptx::barrier_sync(kBarrierIndices, kThreads);
    for (; more; now = next) {
      more = read(cursor, next);
      const int free = tiles_opened == 0 ? kBatchStages : kFreeStages;
      loader.copy(now.keys, state, free, [&] {
        if (now.tile >= 0) open(now);
      });
      state.advance(now.keys.stages);
    }
    if (p.cluster_size > 1) compute_split_scales();
  }

 private:
  static __device__ int thread() { return thread_index() % kWarpgroup; }

  // Reads the indices of the next batch; false if there is no batch left.
  __device__ bool read(Cursor<kHeads>& at, Batch& batch) const {
    if (at.done(p)) return false;
    const bool is_first = at.is_first_of_tile();
    batch = {.tile = is_first ? at.work.index : -1, .keys = loader.read(at)};
    if (is_first && at.work.index != first_tile(p)) prefetch_q(make_tile<kHeads>(p, at.work.index));
    at.advance(p);
    return true;
  }

  // Waits until all QK^T of the tile opened last are complete.
  __device__ void wait_q_empty() const { smem.q_empty.wait((tiles_opened - 1) % 2); }

  __device__ void open(const Batch& batch) {
    if (tiles_opened == 0) {  // the consumers prepare the first tile
      // The other CTAs must have started: compute_split_scales() stores to their shared memory. The
      // wait is here, where no other thread waits for this one: under racecheck no thread of a CTA
      // passes it before all have arrived.
      if (p.cluster_size > 1) ptx::cluster_wait();
      // Waits for the first key tile, without which the consumers cannot start. All CTAs start
      // together, so loading further entries now would delay first tiles of other CTAs. Only for a
      // CTA with a single work tile: with more no gain was measured.
      const bool is_alone = next_tile(p, batch.tile) >= num_tiles(p);
      if (is_alone && batch.keys.stages > 0) {
        smem.kv_full[0].wait(0), smem.kv_full[1].wait(0);
        // No warp may be two phases late at these stages: a wait sees only the parity.
        ptx::barrier_sync(kBarrierProducer, kWarpgroup);
      }
    } else {
      wait_q_empty();
      const WorkTile work = make_tile<kHeads>(p, batch.tile);
      const QLoader<KvFormat, kHeads, kWarpgroup> q{p, smem, thread()};
      q.fetch(work);
      q.finish(work, tiles_opened);
      smem.tile_full.arrive();
    }
    ++tiles_opened;
  }

  // From partials_empty on, partials of other CTAs may overwrite q.
  __device__ void compute_split_scales() const {
    wait_q_empty();
    if (smem.tiles[0].work.num_splits == 1) return;
    if (thread() < p.cluster_size)
      smem.partials_empty.arrive_relaxed_cluster(static_cast<uint32_t>(thread()));
    SplitScales<KvFormat, kHeads>{p, smem, thread()}.run();
  }

  __device__ void prefetch_q(const WorkTile& work) const {
    const int head = thread();
    if (head >= kHeads || work.first_head + head >= p.heads) return;
    constexpr int kBytes = (KvFormat::kCodes + KvFormat::kRope) * 2;
    const auto* q = static_cast<const bf16*>(p.q) + offset_of(p.q_at, work, head);
    ptx::cp_async_bulk_prefetch_l2(q, kBytes);
  }
};

}  // namespace dsv4::sparse_mla_kernel::sm90_fp8
