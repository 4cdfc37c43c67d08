// Logits of every position of one sequence: what `dsv4 eval logits` writes and tests compare.

#pragma once

#include <functional>
#include <span>

#include "dsv4/engine/executor.h"

namespace dsv4 {

// Feeds `ids` in chunks of `chunk` >= 1 tokens and hands out logits chunk by chunk:
//   on_chunk(first, logits)   [n, V] f32 of positions first .. first + n - 1, valid in the call
// Any chunking gives the same bits on batch invariant rows.
void score(const Model& model, const Context& context, std::span<const int32_t> ids, int64_t chunk,
           const std::function<void(int64_t, const ConstTensorView&)>& on_chunk);

}  // namespace dsv4
