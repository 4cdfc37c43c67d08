// Token embedding, copied into every hyper-connection stream (docs/spec/dsv4.md 3).
//
//   out[t, m, :] = table[ids[t], :], or 0 where ids[t] = -1
//
// A part of a table, with rows first .. first + v - 1, gives 0 for every id of another row.

#pragma once

#include <optional>

#include "dsv4/ops/op.h"
#include "dsv4/tensor/tensor.h"

namespace dsv4 {

struct EmbedArgs {
  ConstTensorView ids;             // [t] I32; of a whole table in [-1, v), checked in host memory
  ConstTensorView table;           // [v, d] f32|bf16|f16
  TensorView out;                  // [t, m, d] f32|bf16
  std::optional<int64_t> first{};  // of a part of a table: the id of its first row
};

extern const Op<EmbedArgs> embed;

}  // namespace dsv4
