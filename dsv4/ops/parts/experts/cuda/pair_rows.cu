#include "dsv4/ops/parts/experts/cuda/pair_rows.h"

#include "dsv4/device/launch.cuh"
#include "dsv4/ops/parts/experts/cuda/pair_rows.cuh"

namespace dsv4 {
namespace {

// Calls body(unit) with what rows of both views are moved in.
template <class Body>
void with_unit(const ConstTensorView& from, const TensorView& to, const Body& body) {
  const int64_t packed = kAccessBytes / item_bytes(from.dtype);
  if (packs(from, packed) && packs(to, packed)) return body(uint4{});
  item_bytes(from.dtype) == 4 ? body(uint32_t{}) : body(uint16_t{});
}

void move_rows(Device& device, const ConstTensorView& from, const TensorView& to,
               const int32_t* pair_of, bool from_pairs) {
  with_unit(from, to, [&](auto unit) {
    using Unit = decltype(unit);
    launch(device, "experts_pair_rows", pair_rows::move_kernel<Unit>,
           {.grid = from.dim(0), .block = pair_rows::kThreads, .pdl = true},
           pair_rows::make_move<Unit>(from, to, pair_of, from_pairs));
  });
}

}  // namespace

void place_rows(Device& device, const ConstTensorView& from, const gemm::experts::Choices& choices,
                int32_t* pair_of, const TensorView& pairs) {
  with_unit(from, pairs, [&](auto unit) {
    using Unit = decltype(unit);
    launch(device, "experts_place_rows", pair_rows::place_kernel<Unit>,
           {.grid = from.dim(0), .block = pair_rows::kThreads, .pdl = true},
           pair_rows::make_move<Unit>(from, pairs, nullptr, false), choices, pair_of);
  });
}

void rows_from_pairs(Device& device, const ConstTensorView& pairs, const int32_t* pair_of,
                     const TensorView& to) {
  move_rows(device, pairs, to, pair_of, true);
}

void rows_to_pairs(Device& device, const ConstTensorView& from, const int32_t* pair_of,
                   const TensorView& pairs) {
  move_rows(device, from, pairs, pair_of, false);
}

}  // namespace dsv4
