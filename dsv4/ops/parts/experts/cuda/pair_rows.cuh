// The kernel of pair_rows.h, and its parameters.

#pragma once

#include "dsv4/device/pack.cuh"
#include "dsv4/device/ptx/griddep.cuh"
#include "dsv4/ops/gemm/sm90/experts/entries.h"
#include "dsv4/tensor/tensor.h"

namespace dsv4::pair_rows {

inline constexpr int kThreads = 128;

// Strides and columns in units.
struct Move {
  const void* from;
  void* to;
  const int32_t* pair_of;
  int64_t from_stride, to_stride;
  int32_t columns;
  bool from_pairs;
};

template <class Unit>
Move make_move(const ConstTensorView& from, const TensorView& to, const int32_t* pair_of,
               bool from_pairs) {
  const auto elements = static_cast<int64_t>(sizeof(Unit)) / item_bytes(from.dtype);
  return {.from = from.data,
          .to = to.data,
          .pair_of = pair_of,
          .from_stride = from.row_stride() / elements,
          .to_stride = to.row_stride() / elements,
          .columns = static_cast<int32_t>(from.dim(1) / elements),
          .from_pairs = from_pairs};
}

// grid: rows, in the order of the tokens
template <class Unit>
__global__ void __launch_bounds__(kThreads) move_kernel(const __grid_constant__ Move p) {
  ptx::griddepcontrol_wait();
  ptx::griddepcontrol_launch_dependents();  // not sooner: see rows_to_pairs()
  const int64_t row = blockIdx.x, pair = p.pair_of[row];
  const Unit* const from =
      static_cast<const Unit*>(p.from) + (p.from_pairs ? pair : row) * p.from_stride;
  Unit* const to = static_cast<Unit*>(p.to) + (p.from_pairs ? row : pair) * p.to_stride;
  for (int i = static_cast<int>(threadIdx.x); i < p.columns; i += kThreads) to[i] = from[i];
}

// move_kernel() to the order of the experts, for at most a warp of pairs that no list has: a CTA
// counts those before its own, and stores its place.
template <class Unit>
__global__ void __launch_bounds__(kThreads)
    place_kernel(const __grid_constant__ Move p, const __grid_constant__ gemm::experts::Choices c,
                 int32_t* pair_of) {
  ptx::griddepcontrol_wait();
  ptx::griddepcontrol_launch_dependents();
  const int row = static_cast<int>(blockIdx.x), lane = static_cast<int>(threadIdx.x) % kWarp;
  const int expert = c.expert(row), other = lane < c.pairs ? c.expert(lane) : 0;
  const bool before = other < expert || (other == expert && lane < row);
  const int pair = __popc(__ballot_sync(~0u, lane < c.pairs && before));
  if (threadIdx.x == 0) pair_of[row] = pair;
  const Unit* const from = static_cast<const Unit*>(p.from) + row * p.from_stride;
  Unit* const to = static_cast<Unit*>(p.to) + pair * p.to_stride;
  for (int i = static_cast<int>(threadIdx.x); i < p.columns; i += kThreads) to[i] = from[i];
}

}  // namespace dsv4::pair_rows
