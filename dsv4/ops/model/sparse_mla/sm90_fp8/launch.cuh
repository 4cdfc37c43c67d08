// A call of sm90_fp8: arguments and a plan -> Params, grid and kernel
// instance. Shared by launch.cu and the test that runs in the emulator.

#pragma once

#include <algorithm>

#include "dsv4/base/error.h"
#include "dsv4/device/sm90/online_softmax.cuh"
#include "dsv4/ops/model/sparse_mla/make_index_lists.h"
#include "dsv4/ops/model/sparse_mla/sm90_fp8/config.cuh"

namespace dsv4::sparse_mla_kernel::sm90_fp8 {

inline bool is_v32(const SparseMlaArgs& args) {
  return args.q.dim(-1) == kV32Layout.width();
}

inline Params make_params(const SparseMlaArgs& args, const Plan& plan) {
  DSV4_CHECK(splits_fit(plan.heads, plan.num_splits), "{} splits of {} heads", plan.num_splits,
             plan.heads);
  Params p;
  p.window = paged_list(args.window);
  p.compressed = paged_list(args.compressed);
  p.q = args.q.data;
  p.q_at = query_strides(args.q);
  p.out = args.out.data;
  p.out_at = query_strides(args.out);
  p.out_f32 = args.out.dtype == DType::kF32;
  if (!args.lse.empty()) p.lse = args.lse.as<float>(), p.lse_at = lse_strides(args.lse);
  if (!args.max_logits.empty()) {
    p.max_logits = args.max_logits.as<float>(), p.max_at = lse_strides(args.max_logits);
  }
  if (!args.sink.empty()) p.sink = args.sink.as<float>();
  if (args.inverse_rope.positions.rank > 0) {
    p.positions = args.inverse_rope.positions.as<int32_t>();
    p.freqs = args.inverse_rope.freqs.as<float>();
  }
  const auto early = [](const KvList& list) { return list.topk() == 0 || list.early; };
  p.early = early(args.window) && early(args.compressed) &&
            (args.inverse_rope.positions.rank == 0 || args.inverse_rope.early);
  p.log2_scale = args.scale * sm90::kLog2E;
  p.normalized = args.normalized;
  p.s_q = Divisor(std::max<int64_t>(1, args.q.dim(1)));
  p.queries = static_cast<int>(args.q.dim(0) * args.q.dim(1));
  p.heads = static_cast<int>(args.q.dim(2));
  p.head_groups = Divisor(std::max<int64_t>(1, ceil_div(p.heads, plan.heads)));
  p.split_keys = Divisor(plan.split_keys);
  p.cluster_size = plan.num_splits;
  p.fragments_per_cta = fragments_per_cta(plan.heads, plan.num_splits);
  p.kv_is_read_once = p.head_groups.divisor == 1;
  p.invariant = plan.invariant;
  p.window_positions = plan.invariant && args.window.topk() > 0 ? kInvariantWindow : 0;
  return p;
}

// CTAs of the grid: one per split of every work tile, or without splits at most one per SM.
inline int64_t num_ctas(const Params& p, int num_sms) {
  const int64_t tiles = int64_t{p.queries} * p.head_groups.divisor;
  return p.cluster_size == 1 ? std::min<int64_t>(tiles, num_sms) : tiles * p.cluster_size;
}

template <class KvFormat>
Instance select_instance(const Params& p, int heads) {
  const bool track_max = p.max_logits != nullptr || !p.normalized;
  switch (heads) {
    case 8:
      return instance<KvFormat, 8>(track_max);
    case 16:
      return instance<KvFormat, 16>(track_max);
    case 32:
      return instance<KvFormat, 32>(track_max);
    default:
      return instance<KvFormat, 64>(track_max);
  }
}
inline Instance select_instance(const Params& p, bool v32, const Plan& plan) {
  return v32 ? select_instance<KvFormatV32>(p, plan.heads)
             : select_instance<KvFormatV4>(p, plan.heads);
}

}  // namespace dsv4::sparse_mla_kernel::sm90_fp8
