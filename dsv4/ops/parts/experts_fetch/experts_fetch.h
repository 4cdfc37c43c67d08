// Brings the experts that a step chose into device memory, as far as they are worth a place there,
// and says where each of them is (docs/experts-in-host-memory.md).
//
//   decide (decide.h): which experts come, to which places
//   bytes of the place = those at homes[expert]      of those that come
//   places[e]          = the address of the place of e; homes[e] of an expert without one
//
// `experts` and `moe` read through places (ExpertImages::places), so the step computes with the
// same bytes whatever is in which place, and an expert that found none is read at home. The state
// of a layer lives in the caller's tensors, from step to step. LayerPlaces::clear() and put() begin
// it; fixed experts are in memory then, and have no home.
//
// With `beside`, copies are enqueued on a second stream, and the products of the experts that are
// in their places need not wait for them (fetch_beside.h). Not done here: several layers share no
// places.

#pragma once

#include "dsv4/ops/op.h"
#include "dsv4/ops/parts/experts_fetch/decide.h"
#include "dsv4/tensor/tensor.h"

namespace dsv4 {

class FetchBeside;

struct ExpertsFetchArgs {
  ConstTensorView experts;  // [t, k] I32 contiguous; ids of no expert are left out and counted
  ConstTensorView homes;    // [e] I64: addresses in host memory that the device reads too; 0: fixed
  TensorView memory;        // [m, bytes] U8: the fixed places, then the slots
  int64_t fixed = 0;
  TensorView transient;  // [r, bytes] U8: places for this step; layers may share them
  TensorView places;     // [e] I64: where to read each expert; before the first call as after it
  // The state of decide.h.
  TensorView uses;       // [e, 2] I32: ExpertUse
  TensorView place_of;   // [e] I32
  TensorView expert_in;  // [m + r] I32
  TensorView step;       // [1] I32
  TensorView totals;     // [e] I64
  // Added to: hits, moves, chosen experts read at home, steps with ids of no expert.
  TensorView counters;  // [4] I64
  // [e] I32, if given: 0 where the expert has the place that it had before the step, else 1.
  TensorView turn_of{};
  // If not null, turn_of is that of its lists. Devices copy there; the CPU copies at once.
  FetchBeside* beside = nullptr;
};

extern const Op<ExpertsFetchArgs> experts_fetch;

namespace experts_fetch_kernel {
// The state as decide() takes it, without its memory's lifetime.
LayerPlaces layer_of(const ExpertsFetchArgs& args);
}  // namespace experts_fetch_kernel

}  // namespace dsv4
