// What the kernel of sm90_fp8.cu is told, and how a call is cut into work items.
//
// A work item is one query and one group of heads. Its list (window slots, then compressed slots)
// is cut into chunks, positions chunk * i .. chunk * (i + 1) - 1, one for each block of a cluster;
// the blocks give each other their parts and each merges some values, in chunk order.

#pragma once

#include "dsv4/ops/sparse_mla/row_lists.cuh"

namespace dsv4::sm90_fp8 {

struct Params {
  PagedList window, compressed;
  const void* q = nullptr;  // [b, s_q, heads, d] bf16
  void* out = nullptr;      // [b, s_q, heads, 512] bf16 or f32
  float* lse = nullptr;     // [b, heads, s_q] or null
  float* max_logits = nullptr;
  const float* sink = nullptr;  // [heads] or null
  QueryStrides q_at{}, out_at{}, lse_at{}, max_at{};
  float log2_scale = 0;  // scale * log2(e)
  bool normalized = true, out_f32 = false;
  int queries = 0, heads = 0;
  Divisor s_q{};

  // How the work is cut.
  Divisor head_groups{};   // blocks of heads of a query
  Divisor chunk{};         // list positions of a block, a multiple of 64
  int chunks = 1;          // blocks of a cluster
  int part_units = 0;      // units_of_block()
  bool rows_once = false;  // a query reads its rows in one block: L2 need not keep them
  bool invariant = false;  // Plan::invariant
  int window_room = 0;     // positions of the window, if its list is shorter
};

}  // namespace dsv4::sm90_fp8
