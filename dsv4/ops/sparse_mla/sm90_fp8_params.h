// What the kernel of sm90_fp8.cu is told, and how a call is cut into work items.
//
// A work item is one query and one group of heads. Its list (window slots, then compressed slots)
// is cut into chunks, positions chunk * i .. chunk * (i + 1) - 1, one for each block of a cluster;
// the blocks exchange their parts through memory and each merges some of the heads, in chunk order.

#pragma once

#include <cstdint>

#include "dsv4/base/bits.h"

namespace dsv4::mla90 {

// n / divisor for 0 <= n < 2^31 without a division.
struct Divisor {
  uint32_t magic = 0;
  int shift = 0;

  static Divisor of(uint32_t divisor) {
    int shift = 0;
    while (shift < 31 && (uint64_t{1} << shift) < divisor) ++shift;
    const uint64_t magic = (uint64_t{1} << 32) * ((uint64_t{1} << shift) - divisor) / divisor + 1;
    return {static_cast<uint32_t>(magic), shift};
  }
#ifdef __CUDACC__
  __device__ int divide(int n) const {
    return static_cast<int>((__umulhi(magic, static_cast<uint32_t>(n)) + n) >> shift);
  }
#endif
};

// One of the two lists and the pool that it names rows of.
struct Segment {
  const uint8_t* pages = nullptr;
  int64_t page_bytes = 0;  // from page to page
  int page_entries = 1, num_rows = 0;
  Divisor entries{};
  const int32_t* rows = nullptr;  // [b, s_q, slots]
  int64_t rows_batch_stride = 0, rows_query_stride = 0;
  int slots = 0;
  const int32_t* lengths = nullptr;  // [b] or null
};

struct Params {
  Segment window, compressed;
  const void* q = nullptr;  // [b, s_q, heads, d] bf16
  int64_t q_batch_stride = 0, q_query_stride = 0, q_head_stride = 0;
  void* out = nullptr;  // [b, s_q, heads, 512] bf16 or f32
  int64_t out_batch_stride = 0, out_query_stride = 0, out_head_stride = 0;
  float *lse = nullptr, *max_logits = nullptr;  // or null; strides of both:
  int64_t stat_batch_stride = 0, stat_query_stride = 0, stat_head_stride = 0;
  const float* sink = nullptr;  // [heads] or null
  float log2_scale = 0;         // scale * log2(e)
  bool normalized = true, out_f32 = false;
  int queries = 0, queries_per_request = 1, heads = 0;

  // How the work is cut.
  int head_groups = 1, chunks = 1, chunk = 0;  // chunk: list positions, a multiple of 64
  Divisor by_head_groups{}, by_queries{}, by_chunk{};
  float* partial = nullptr;   // [2 clusters, chunks, heads of a group, 512], if chunks > 1
                              // or out_f32; clusters: blocks / chunks
  float2* summary = nullptr;  // [items, chunks, heads of a group]: reference, sum
};

// Divisors of a call whose other numbers are set.
inline void set_divisors(Params& p) {
  p.by_head_groups = Divisor::of(static_cast<uint32_t>(p.head_groups));
  p.by_queries = Divisor::of(static_cast<uint32_t>(p.queries_per_request));
  p.by_chunk = Divisor::of(static_cast<uint32_t>(p.chunk));
}

}  // namespace dsv4::mla90
