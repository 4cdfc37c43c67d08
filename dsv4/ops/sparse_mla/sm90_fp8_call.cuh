// A call of sm90_fp8.cu: arguments as by_request() gives them and a plan -> Params, grid and
// kernel.

#pragma once

#include <algorithm>

#include "dsv4/base/error.h"
#include "dsv4/ops/sparse_mla/sm90_fp8_kernel.cuh"

namespace dsv4::sm90_fp8 {

inline bool is_v32(const SparseMlaArgs& args) {
  return args.q.dim(-1) == kV32Layout.width();
}

inline Params params(const SparseMlaArgs& args, const Plan& plan) {
  DSV4_CHECK(sm90_fp8::parts_fit(plan.heads, plan.chunks), "{} chunks of {} heads", plan.chunks,
             plan.heads);
  Params p;
  p.window = paged_list(args.window);
  p.compressed = paged_list(args.compressed);
  p.q = args.q.data;
  p.q_at = row_strides(args.q);
  p.out = args.out.data;
  p.out_at = row_strides(args.out);
  p.out_f32 = args.out.dtype == DType::kF32;
  if (!args.lse.empty()) p.lse = args.lse.as<float>(), p.lse_at = sum_strides(args.lse);
  if (!args.max_logits.empty()) {
    p.max_logits = args.max_logits.as<float>(), p.max_at = sum_strides(args.max_logits);
  }
  if (!args.sink.empty()) p.sink = args.sink.as<float>();
  p.log2_scale = args.scale * kLog2E;
  p.normalized = args.normalized;
  p.s_q = Divisor(std::max<int64_t>(1, args.q.dim(1)));
  p.queries = static_cast<int>(args.q.dim(0) * args.q.dim(1));
  p.heads = static_cast<int>(args.q.dim(2));
  p.head_groups = Divisor(std::max<int64_t>(1, ceil_div(p.heads, plan.heads)));
  p.chunk = Divisor(plan.chunk);
  p.chunks = plan.chunks;
  p.part_units = units_of_block(plan.heads, plan.chunks);
  p.rows_once = p.head_groups.divisor == 1;
  p.invariant = plan.invariant;
  p.window_room = plan.invariant && listed(args.window) > 0 ? kInvariantWindow : 0;
  return p;
}

// Blocks of the grid: those that run at a time walk all items, or each has a chunk of one.
inline int64_t num_blocks(const Params& p, int processors) {
  const int64_t items = int64_t{p.queries} * p.head_groups.divisor;
  return p.chunks == 1 ? std::min<int64_t>(items, processors) : items * p.chunks;
}

// Calls visit(kernel, bytes of shared memory) with the kernel of a call.
template <class Row, int kHeads, class Visit>
void with_kernel_of(const Params& p, const Visit& visit) {
  constexpr int64_t kShared = sizeof(Shared<Row, kHeads>);
  static_assert(kShared <= kMaxShared);
  const bool track = p.max_logits != nullptr || !p.normalized;
  visit(
      track ? sparse_mla_fp8_kernel<Row, kHeads, true> : sparse_mla_fp8_kernel<Row, kHeads, false>,
      kShared);
}
template <class Row, class Visit>
void with_kernel_of(const Params& p, int heads, const Visit& visit) {
  switch (heads) {
    case 8:
      return with_kernel_of<Row, 8>(p, visit);
    case 16:
      return with_kernel_of<Row, 16>(p, visit);
    case 32:
      return with_kernel_of<Row, 32>(p, visit);
    default:
      return with_kernel_of<Row, 64>(p, visit);
  }
}
template <class Visit>
void with_kernel(const Params& p, bool v32, const Plan& plan, const Visit& visit) {
  v32 ? with_kernel_of<RowV32>(p, plan.heads, visit) : with_kernel_of<RowV4>(p, plan.heads, visit);
}

}  // namespace dsv4::sm90_fp8
