// The values of an exchange in slots, one for each rank, as an all-gather of NCCL moves them: a
// kernel before it stores what its rank computed in its slot, a kernel after it copies what came.
//
//   slots of a rank   [world, buffer_bytes]: ExchangeParams::windows[rank]
//   slot r            of each tensor [rows, columns of rank r], without gaps, from t.window on
//
// Ranks may move values in different units, since a slot has the same bytes for all of them.

#pragma once

#include "dsv4/comm/exchange.cuh"

namespace dsv4::exchange {

template <class Unit>
__device__ Unit* slot_of(const ExchangeParams& p, const ExchangedTensor& t, int rank) {
  return reinterpret_cast<Unit*>(p.windows[p.rank] + rank * p.buffer_bytes + t.window);
}

// Rows of which another rank is the owner are stored too; nothing reads them.
template <class Unit>
__device__ void store_in_slot(const ExchangeParams& p, const ExchangedTensor& t,
                              const Share& share) {
  const auto* from = static_cast<const Unit*>(t.from);
  Unit* const slot = slot_of<Unit>(p, t, p.rank);
  const int32_t width = t.count[p.rank];
  const auto load = [&](uint32_t row, uint32_t column) {
    return from[row * t.from_stride + column];
  };
  const auto store = [&](uint32_t row, uint32_t column, const Unit& value) {
    slot[static_cast<int64_t>(row) * width + column] = value;
  };
  move_share<Unit>(t.rows, width, p.granule, share, load, store);
}

template <class Unit>
__device__ void copy_from_slots(const ExchangeParams& p, const ExchangedTensor& t,
                                const Share& share) {
  for (int r = 0; r < p.world; ++r) {
    if (r == p.rank) continue;
    const Unit* const slot = slot_of<Unit>(p, t, r);
    const int32_t width = t.count[r];
    const auto load = [&](uint32_t row, uint32_t column) {
      return slot[static_cast<int64_t>(row) * width + column];
    };
    const auto store = [&](uint32_t row, uint32_t column, const Unit& value) {
      if (t.ids != nullptr && t.owner(row, p.world) != r) return;
      static_cast<Unit*>(t.to)[row * t.to_stride + t.begin[r] + column] = value;
    };
    move_share<Unit>(t.rows, width, p.granule, share, load, store);
  }
}

// before: the all-gather is still to come.
template <class Unit>
__device__ void through_slots(const ExchangeParams& p, bool before, int cta, int ctas) {
  const Share share{cta, ctas, static_cast<int>(threadIdx.x), static_cast<int>(blockDim.x)};
  for (int i = 0; i < p.num_tensors; ++i) {
    const ExchangedTensor& t = p.tensors[i];
    if (before) {
      store_in_slot<Unit>(p, t, share);
    } else if (t.to != nullptr) {
      copy_from_slots<Unit>(p, t, share);
    }
  }
}

}  // namespace dsv4::exchange
