// Rows of token-expert pairs between two orders: that of the tokens with their slots, in which
// ranks exchange them (halves.h), and that of the experts, in which kernels compute them.
//
//   rows_from_pairs   to[i] = pairs[pair_of[i]]
//   rows_to_pairs     pairs[pair_of[i]] = from[i]
//
// pair_of: [n] in device memory, distinct numbers below n, as a plan of the pairs has them
// (PairLists, ExpertPlan). Views [n, c] of one dtype, whose rows may be strided; units of 16 bytes
// are moved where all rows allow it. A launch costs about as much as a small one of any kind, so
// kernels that read and write rows in the order of the tokens themselves would save it.

#pragma once

#include "dsv4/device/device.h"
#include "dsv4/ops/gemm/sm90/experts/entries.h"
#include "dsv4/tensor/tensor.h"

namespace dsv4 {

void rows_from_pairs(Device& device, const ConstTensorView& pairs, const int32_t* pair_of,
                     const TensorView& to);
// A kernel that starts early after rows_to_pairs() (LaunchShape::pdl) finds all
// that was enqueued before it complete.
void rows_to_pairs(Device& device, const ConstTensorView& from, const int32_t* pair_of,
                   const TensorView& pairs);
// rows_to_pairs() of at most 32 pairs that no plan has yet. Stores pair_of, too.
void place_rows(Device& device, const ConstTensorView& from, const gemm::experts::Choices& choices,
                int32_t* pair_of, const TensorView& pairs);

}  // namespace dsv4
