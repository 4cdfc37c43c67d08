// Decide and copy.
//
// Problem    decide: decide.h, by one warp, and the table of places. copy, for each move: the
//            bytes of the place become those at homes[expert]
// Bound      the link: 6 to 35 MB an expert at 50 GB/s; decide: a chain of loads, about 1 us a move
// Tiles      strips of 26,624 bytes, of all moves one after the other; a CTA has every kCtas-th
// Roles      copy: warps 0 - 7 store what has arrived | warp 8, one lane: bulk copies into the ring
// Barriers   full[stage]     1    producer and the copy's bytes | storing warps
//            empty[stage]    256  all storing threads | producer
// Registers  decide 48, copy 86, no spills
// Smem       a ring of 4 strips, 104 KB
//
// Stores are ordinary ones of 16 bytes: of the two directions the reads from the host are the slow
// ones.

#pragma once

#include "dsv4/device/ptx/bulk_copy.cuh"
#include "dsv4/device/ptx/griddep.cuh"
#include "dsv4/device/ptx/shared_memory.cuh"
#include "dsv4/device/sm90/ring.cuh"
#include "dsv4/ops/parts/experts_fetch/sm90/config.cuh"

namespace dsv4::experts_fetch_kernel::sm90 {

// A warp that decides together.
struct WarpLanes {
  static constexpr int kCount = kWarp;
  __device__ static int rank() { return static_cast<int>(threadIdx.x); }
  __device__ static void sync() { __syncwarp(); }
  __device__ static uint32_t ballot(bool yes) { return __ballot_sync(~0u, yes); }
  __device__ static int32_t lowest(int32_t value) { return __reduce_min_sync(~0u, value); }
};

static __global__ void __launch_bounds__(kWarp, 1)
    decide_kernel(const __grid_constant__ DecideParams p) {
  ptx::griddepcontrol_launch_dependents();
  ptx::griddepcontrol_wait();
  const LayerPlaces& layer = p.layer;
  const Decision decision = decide(WarpLanes{}, layer, p.ids, p.choices, p.moves);
  for (int e = WarpLanes::rank(); e < layer.experts; e += kWarp) {
    const int32_t place = layer.place_of[e];
    p.places[e] = place == kHome ? p.homes[e] : reinterpret_cast<int64_t>(p.memory.of(place));
    if (p.turn_of != nullptr) p.turn_of[e] = place == kHome ? 1 : 0;
  }
  if (p.turn_of != nullptr) {
    __syncwarp();
    for (int i = WarpLanes::rank(); i < decision.moves; i += kWarp)
      p.turn_of[p.moves[i].expert] = 1;
  }
  if (WarpLanes::rank() != 0) return;
  *p.count = decision.moves;
  p.counters[0] += decision.hits, p.counters[1] += decision.moves;
  p.counters[2] += decision.at_home, p.counters[3] += decision.impossible;
}

// The strips of a CTA.
struct Strips {
  const CopyParams& p;
  int of_expert, count;  // strips of an expert; of all moves

  __device__ explicit Strips(const CopyParams& params)
      : p(params),
        of_expert(static_cast<int>((params.bytes + kStripBytes - 1) / kStripBytes)),
        count(*params.count * of_expert) {}

  // Calls body(move, offset, bytes).
  template <class Body>
  __device__ void visit(const Body& body) const {
    for (int i = static_cast<int>(blockIdx.x); i < count; i += static_cast<int>(gridDim.x)) {
      const int64_t offset = int64_t{i % of_expert} * kStripBytes;
      body(p.moves[i / of_expert], offset,
           static_cast<int>(
               min(static_cast<uint64_t>(kStripBytes), static_cast<uint64_t>(p.bytes - offset))));
    }
  }
};

__device__ inline void load_strips(const Strips& strips, Shared& shared) {
  dsv4::sm90::RingCursor at;
  strips.visit([&](const Move& move, int64_t offset, int bytes) {
    shared.empty[at.stage].wait(at.phase ^ 1);
    shared.full[at.stage].expect_tx(static_cast<uint32_t>(bytes));
    const auto* home = reinterpret_cast<const std::byte*>(strips.p.homes[move.expert]);
    ptx::cp_async_bulk_evict_first(ptx::smem_address(shared.stages[at.stage]), home + offset,
                                   static_cast<uint32_t>(bytes), shared.full[at.stage]);
    shared.full[at.stage].arrive();
    at.next(kStages);
  });
}

__device__ inline void store_strips(const Strips& strips, Shared& shared) {
  dsv4::sm90::RingCursor at;
  strips.visit([&](const Move& move, int64_t offset, int bytes) {
    shared.full[at.stage].wait(at.phase);
    const auto* from = reinterpret_cast<const uint4*>(shared.stages[at.stage]);
    auto* to = reinterpret_cast<uint4*>(strips.p.memory.of(move.place) + offset);
    for (int i = static_cast<int>(threadIdx.x); i < bytes / 16; i += kStoreThreads) to[i] = from[i];
    shared.empty[at.stage].arrive();
    at.next(kStages);
  });
}

static __global__ void __launch_bounds__(kThreads, 1)
    copy_kernel(const __grid_constant__ CopyParams p) {
  ptx::griddepcontrol_launch_dependents();
  auto& shared = *reinterpret_cast<Shared*>(ptx::dynamic_smem());
  if (threadIdx.x == 0) {
    for (int i = 0; i < kStages; ++i) shared.full[i].init(1), shared.empty[i].init(kStoreThreads);
    ptx::fence_mbarrier_init();
  }
  __syncthreads();
  ptx::griddepcontrol_wait();
  const Strips strips(p);
  if (threadIdx.x < kStoreThreads) {
    store_strips(strips, shared);
  } else if (threadIdx.x == kStoreThreads) {
    load_strips(strips, shared);
  }
}

}  // namespace dsv4::experts_fetch_kernel::sm90
