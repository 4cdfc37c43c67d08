// Sparse multi-query attention over the cache rows of DeepSeek-V3.2 and V4. Decode over packed FP8
// rows and prefill over a bf16 latent are the same call with different rows.
//
//   z_j = scale * (q_h . k_j),  m = max_j z_j,  v_j = the first d_v values of k_j
//   out_h = sum_j exp(z_j - m) v_j / (sum_j exp(z_j - m) + exp(sink_h - m))
//
// j runs over two lists of indices that share one softmax: the window, then the compressed rows
// (one list is enough; where a peer says "cache" and "extra cache", they are these two). Source:
// the DeepSeek-V4 report, sparse attention with sinks; docs/kernels/sparse_mla_api.md.
//
// dsv4_call::exact = 0 rounds exp(z_j - m) for the product with v_j as the released model does.
//
// What it does not do: dense attention through a block table, backward, a choice of rows.

#pragma once

#include "dsv4_kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

// Rows of a paged cache, and which of them each query attends to.
//
// Rows, by the last axis of `pages` and its dtype (B = page_entries):
//
//   584 U8|I8|E4M3   V4: a page is B x (448 e4m3 | 64 bf16), then B x (7 UE8M0 scales, one per 64
//                    e4m3 | 1 unused); d = d_v = 512; key and value are all 512
//   656 U8|I8|E4M3   V3.2: a page is B x (512 e4m3 | 4 f32 scales, one per 128 e4m3 | 64 bf16);
//                    d = 576, d_v = 512; the bf16 part is key only
//   d   F32|BF16     plain: B x d values; any d, any d_v <= d
//
// An index is page * page_entries + entry: physical, there is no block table. Negative ones are
// skipped. Those of num_pages * page_entries and more are skipped on a GPU and refused on the host.
typedef struct dsv4_kv_list {
  // [num_pages, page_entries, 584 | 656 | d]; the rows of a page are adjacent, pages have any
  // stride (a multiple of 2 bytes for V4, of 4 for V3.2). Absent: no such list.
  dsv4_tensor pages;
  dsv4_tensor indices;  // [b, s_q, n] I32
  // [b] I32, or absent. The queries of request i use their first topk_length[i] indices (below 0:
  // none, above n: n); the others are not read.
  dsv4_tensor topk_length;
} dsv4_kv_list;

// On a GPU, q, out and pages on 16 bytes are what the fast implementations need.
typedef struct dsv4_sparse_mla_params {
  size_t size;    // sizeof(dsv4_sparse_mla_params)
  dsv4_tensor q;  // [b, s_q, h, d] F32|BF16
  dsv4_kv_list window, compressed;
  dsv4_tensor sink;  // [h] F32 natural logarithm, +-inf legal; or absent
  float scale;       // > 0
  // 1: out = sum_j exp(z_j - m) v_j, without sink, to be combined with others; needs max_logits
  int32_t unnormalized;
  dsv4_tensor out;  // [b, s_q, h, d_v] F32|BF16; without any valid row 0
  dsv4_tensor lse;  // [b, h, s_q] F32 ln(sum_j exp(z_j)), without the sink; without any valid
                    // row +inf; or absent
  dsv4_tensor max_logits;  // [b, h, s_q] F32 m; without any valid row -inf; or absent
} dsv4_sparse_mla_params;

DSV4_API int dsv4_sparse_mla(const dsv4_sparse_mla_params* params, const dsv4_call* call);
// Bytes that dsv4_sparse_mla() takes from its workspace for these arguments, often 0; 0 on the
// host. No tensor is read; of pointers, presence and alignment count.
DSV4_API int dsv4_sparse_mla_workspace_bytes(const dsv4_sparse_mla_params* params,
                                             const dsv4_call* call, size_t* bytes);

// Writes rows of a cache: those of `rows` >= 0, which are distinct. Packed forms round: V4 to e4m3
// with a power-of-two scale per 64 values, of max |x| / 448 and at least 1e-4 / 448; V3.2 per 128
// values, of at least 1e-4; the rest to bf16. Row ids of num_pages * page_entries and more are
// refused on the host; on a GPU they must not occur.
typedef struct dsv4_kv_insert_params {
  size_t size;        // sizeof(dsv4_kv_insert_params)
  dsv4_tensor x;      // [n, d] F32|BF16; d: 512 of V4, 576 of V3.2
  dsv4_tensor rows;   // [n] I32: page * page_entries + entry; negative: skipped
  dsv4_tensor pages;  // as in dsv4_kv_list, packed or F32
} dsv4_kv_insert_params;

DSV4_API int dsv4_kv_insert(const dsv4_kv_insert_params* params, const dsv4_call* call);
DSV4_API int dsv4_kv_insert_workspace_bytes(const dsv4_kv_insert_params* params,
                                            const dsv4_call* call, size_t* bytes);

#ifdef __cplusplus
}
#endif
