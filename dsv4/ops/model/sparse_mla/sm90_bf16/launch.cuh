// A call of sm90_bf16: arguments -> Params, grid and kernel instance. Shared
// by launch.cu and the emulator's test.

#pragma once

#include <algorithm>

#include "dsv4/ops/model/sparse_mla/make_index_lists.h"
#include "dsv4/ops/model/sparse_mla/sm90_bf16/config.cuh"

namespace dsv4::sparse_mla_kernel::sm90_bf16 {

inline Params make_params(const SparseMlaArgs& args) {
  const int64_t head_groups = ceil_div(args.q.dim(2), kTileHeads);
  Params p{.window = paged_list(args.window),
           .compressed = paged_list(args.compressed),
           .q = args.q.as<bf16>(),
           .out = args.out.data,
           .lse = nullptr,
           .max_logits = nullptr,
           .sink = args.sink.empty() ? nullptr : args.sink.as<float>(),
           .q_at = query_strides(args.q),
           .out_at = query_strides(args.out),
           .lse_at = {},
           .max_at = {},
           .scale = args.scale,
           .normalized = args.normalized,
           .heads = static_cast<int>(args.q.dim(2)),
           .tiles = static_cast<int>(args.q.dim(0) * args.q.dim(1) * head_groups),
           .head_groups = Divisor(head_groups),
           .s_q = Divisor(args.q.dim(1))};
  if (!args.lse.empty()) p.lse = args.lse.as<float>(), p.lse_at = lse_strides(args.lse);
  if (!args.max_logits.empty()) {
    p.max_logits = args.max_logits.as<float>(), p.max_at = lse_strides(args.max_logits);
  }
  return p;
}

inline int64_t num_ctas(const Params& p, int num_sms) {
  return std::min(p.tiles, num_sms);
}

inline Instance select_instance(const SparseMlaArgs& args) {
  const bool out_f32 = args.out.dtype == DType::kF32;
  return args.q.dim(-1) == kDimV ? instance<kValuePanels>(out_f32)
                                 : instance<kValuePanels + 1>(out_f32);
}

}  // namespace dsv4::sparse_mla_kernel::sm90_bf16
