// From the arguments of a call to the parameters of its kernels, without launching them.

#pragma once

#include "dsv4/ops/parts/experts_fetch/experts_fetch.h"
#include "dsv4/ops/parts/experts_fetch/fetch_beside.h"
#include "dsv4/ops/parts/experts_fetch/sm90/config.cuh"
#include "dsv4/tensor/scratch.h"

namespace dsv4::experts_fetch_kernel::sm90 {

struct Call {
  DecideParams decide;
  CopyParams copy;
};

// Takes temporaries from `scratch`, but for copies that may run when the call's scratch is others'.
inline Call make_call(const ExpertsFetchArgs& args, Scratch& scratch) {
  const LayerPlaces layer = layer_of(args);
  const FetchLists lists = args.beside != nullptr
                               ? args.beside->lists()
                               : FetchLists{.turn_of = args.turn_of,
                                            .moves = scratch.take(DType::kI32, {layer.experts, 2}),
                                            .count = scratch.take(DType::kI32, {1})};
  auto* const moves = reinterpret_cast<Move*>(lists.moves.data);
  auto* const count = lists.count.as<int32_t>();
  const PlaceMemory memory{.memory = args.memory.data,
                           .transient = args.transient.data,
                           .distance = args.memory.row_stride(),
                           .transient_distance = args.transient.row_stride(),
                           .kept = static_cast<int>(args.memory.dim(0))};
  return {.decide = {.layer = layer,
                     .ids = args.experts.as<int32_t>(),
                     .choices = static_cast<int>(args.experts.numel()),
                     .homes = args.homes.as<int64_t>(),
                     .places = args.places.as<int64_t>(),
                     .memory = memory,
                     .counters = args.counters.as<int64_t>(),
                     .moves = moves,
                     .count = count,
                     .turn_of = lists.turn_of.empty() ? nullptr : lists.turn_of.as<int32_t>()},
          .copy = {.homes = args.homes.as<int64_t>(),
                   .memory = memory,
                   .bytes = args.memory.dim(1),
                   .moves = moves,
                   .count = count}};
}

}  // namespace dsv4::experts_fetch_kernel::sm90
