// XAttention: block-sparse prefill attention of ordinary models (arXiv 2503.16428). Four ops:
//
//   dsv4_xattn_scores             an estimate of the attention mass of every pair of blocks
//   dsv4_xattn_select             the key blocks of every query block that hold most of the mass
//   dsv4_block_sparse_attention   attention over listed key blocks; without lists it is dense
//   dsv4_xattn_prefill            the three in one call
//
// Sequence i has the rows cu_q[i] .. cu_q[i + 1] - 1 of q and the rows cu_kv[i] .. cu_kv[i + 1] - 1
// of k and v. Causal: query j of a sequence is at position keys - queries + j and sees the keys up
// to its own position. Not causal: every query sees every key, and query j is at position j.
//
// Block I holds the positions I * block .. (I + 1) * block - 1. Row r of sums and lists is the
// query block floor(first position / block) + r, so a chunk of a prompt has the same blocks as the
// whole prompt.
//
// h_kv divides h_q: consecutive query heads share a key head, and nothing is repeated. Source of
// the formulas: docs/spec/xattention.md 1.2 to 1.6.
//
// What it does not do: dropout, backward, a key cache in FP8.

#pragma once

#include "dsv4_kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

// The sequences of a call. With a page table, k and v are [pages, page_size, h_kv, d].
typedef struct dsv4_prefill_batch {
  dsv4_tensor cu_q;        // [b + 1] I32, ascending from 0 to the rows of q
  dsv4_tensor cu_kv;       // [b + 1] I32, ascending from 0
  dsv4_tensor page_table;  // [b, n] I32: the pages of a sequence in order; absent: rows
  int32_t non_causal;      // 0: causal
  int32_t block;           // positions of a block: 64 or 128; 0: 128
} dsv4_prefill_batch;

// score[r, c] = sum_{s < S} q[r S + (S - 1 - s)] . k[c S + s] of groups r, c of S = stride
// positions, sums[I, J] = the rows r of block I, columns c of block J of softmax(scale / S *
// score).
typedef struct dsv4_xattn_scores_params {
  size_t size;  // sizeof(dsv4_xattn_scores_params)
  dsv4_prefill_batch batch;
  dsv4_tensor q;     // [t_q, h_q, d] F32|BF16|F16
  dsv4_tensor k;     // [t_kv, h_kv, d], or pages; dtype of q
  int64_t stride;    // S: a power of two up to block; 0: 16
  float scale;       // > 0; usually 1 / sqrt(d)
  dsv4_tensor sums;  // [b, h_q, q_blocks, k_blocks] F32, packed: the most blocks of any sequence
} dsv4_xattn_scores_params;

DSV4_API int dsv4_xattn_scores(const dsv4_xattn_scores_params* params, const dsv4_call* call);
DSV4_API int dsv4_xattn_scores_workspace_bytes(const dsv4_xattn_scores_params* params,
                                               const dsv4_call* call, size_t* bytes);

// Keeps block 0 and the diagonal block, then takes the other visible blocks, largest first (of
// equal sums the lower block), until the share tau of the row's mass is listed. With top_k until
// top_k blocks are listed.
typedef struct dsv4_xattn_select_params {
  size_t size;                 // sizeof(dsv4_xattn_select_params)
  dsv4_prefill_batch batch;    // page_table is not used
  dsv4_tensor sums;            // [b, h, q_blocks, k_blocks] F32, packed
  dsv4_tensor tau;             // [h] F32; or absent with top_k
  int64_t top_k;               // 0: tau decides
  int64_t min_blocks;          // of a row
  int64_t max_blocks;          // of a row, kept blocks excepted; 0: no limit
  int32_t no_sink;             // 1: block 0 is not kept
  dsv4_tensor prompt_lengths;  // [b] I32 tokens of the whole prompt; absent: the keys of the call
  int64_t min_length;          // prompts with fewer tokens list every visible block
  int64_t dense_tail;          // so do the last dense_tail tokens of a prompt
  dsv4_tensor counts;          // [b, h, q_blocks] I32, packed
  dsv4_tensor indices;  // [b, h, q_blocks, k_blocks] I32, packed: ascending, -1 past the count
} dsv4_xattn_select_params;

DSV4_API int dsv4_xattn_select(const dsv4_xattn_select_params* params, const dsv4_call* call);
DSV4_API int dsv4_xattn_select_workspace_bytes(const dsv4_xattn_select_params* params,
                                               const dsv4_call* call, size_t* bytes);

// A query without any key gives out = 0 and lse = -inf. Listed blocks that a query does not see are
// ignored.
typedef struct dsv4_block_sparse_attention_params {
  size_t size;  // sizeof(dsv4_block_sparse_attention_params)
  dsv4_prefill_batch batch;
  dsv4_tensor q;         // [t_q, h_q, d] F32|BF16|F16
  dsv4_tensor k;         // [t_kv, h_kv, d], or pages
  dsv4_tensor v;         // [t_kv, h_kv, d_v], or pages
  dsv4_tensor counts;    // [b, h_q, q_blocks] I32, packed; absent: every visible block
  dsv4_tensor indices;   // [b, h_q, q_blocks, k_blocks] I32, packed, ascending up to the count
  int64_t max_q_blocks;  // without lists: the most query blocks of a sequence
  float scale;           // > 0
  dsv4_tensor out;       // [t_q, h_q, d_v], dtype of q
  dsv4_tensor lse;       // [h_q, t_q] F32 natural logarithm; or absent
} dsv4_block_sparse_attention_params;

DSV4_API int dsv4_block_sparse_attention(const dsv4_block_sparse_attention_params* params,
                                         const dsv4_call* call);
DSV4_API int dsv4_block_sparse_attention_workspace_bytes(
    const dsv4_block_sparse_attention_params* params, const dsv4_call* call, size_t* bytes);

typedef struct dsv4_xattn_prefill_params {
  size_t size;  // sizeof(dsv4_xattn_prefill_params)
  dsv4_prefill_batch batch;
  dsv4_tensor q;                  // [t_q, h_q, d] F32|BF16|F16
  dsv4_tensor k;                  // [t_kv, h_kv, d], or pages
  dsv4_tensor v;                  // [t_kv, h_kv, d_v], or pages
  int64_t max_queries, max_keys;  // of any sequence, at least
  int64_t stride;                 // 0: 16
  dsv4_tensor tau;                // [h_q] F32
  int32_t dense;                  // 1: this layer is not approximated
  dsv4_tensor prompt_lengths;     // as in dsv4_xattn_select_params
  int64_t min_length, dense_tail;
  int64_t workspace_limit;  // bytes of sums and lists: more heads in one round; 0: 2^30
  float scale;              // > 0
  float norm;               // temperature of the scores: they use scale / norm; 0: 1
  dsv4_tensor out;          // [t_q, h_q, d_v], dtype of q
  dsv4_tensor lse;          // [h_q, t_q] F32; or absent
} dsv4_xattn_prefill_params;

DSV4_API int dsv4_xattn_prefill(const dsv4_xattn_prefill_params* params, const dsv4_call* call);
DSV4_API int dsv4_xattn_prefill_workspace_bytes(const dsv4_xattn_prefill_params* params,
                                                const dsv4_call* call, size_t* bytes);

#ifdef __cplusplus
}
#endif
