// Sparse multi-query attention over the cache rows of DeepSeek-V3.2 and V4, as a C99 library
// (libdsv4_kernels.so): plain pointers, no framework. Decode over packed FP8 rows and prefill over
// a bf16 latent are the same call with different rows.
//
//   z_j = scale * (q_h . k_j),  m = max_j z_j,  v_j = the first d_v values of k_j
//   out_h = sum_j exp(z_j - m) v_j / (sum_j exp(z_j - m) + exp(sink_h - m))
//
// j runs over two lists of row ids that share one softmax: the window, then the compressed rows
// (one list is enough; where a peer says "cache" and "extra cache", they are these two). Source:
// the DeepSeek-V4 report, sparse attention with sinks; docs/kernels/sparse_mla_api.md.
//
// Every function that returns int returns a dsv4_status, never aborts and never prints, and may be
// called from any thread. Refused arguments leave the outputs as they were.
//
// What it does not do: dense attention through a block table, backward, a choice of rows.

#pragma once

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define DSV4_API __attribute__((visibility("default")))

typedef enum dsv4_status {
  DSV4_OK = 0,
  DSV4_INVALID_ARGUMENT = 1,  // an argument contradicts this page
  DSV4_UNSUPPORTED = 2,       // no implementation fits, or no such GPU
  DSV4_OUT_OF_ROOM = 3,       // memory, or the workspace is too small
  DSV4_FAILED = 4             // anything else
} dsv4_status;

// One line with the values in question: why the last failed call of this thread failed; "" before
// that. Valid until the next failed call of this thread.
DSV4_API const char* dsv4_last_error(void);
DSV4_API const char* dsv4_version(void);  // "0.1.0"

typedef enum dsv4_dtype { DSV4_F32 = 0, DSV4_BF16 = 1 } dsv4_dtype;

// A page holds page_entries rows. Bytes of a page, with B = page_entries:
//
//   V4     B x (448 e4m3 | 64 bf16), then B x (7 UE8M0 scales, one per 64 e4m3 | 1 unused)
//          d = d_v = 512; key and value are all 512
//   V32    B x (512 e4m3 | 4 f32 scales, one per 128 e4m3 | 64 bf16)
//          d = 576, d_v = 512; the bf16 part is key only
//   F32, BF16   B x d values; any d, any d_v <= d
//
// Nothing behind the rows of a page is read: pages may be padded.
typedef enum dsv4_rows {
  DSV4_ROWS_V4 = 0,
  DSV4_ROWS_V32 = 1,
  DSV4_ROWS_F32 = 2,
  DSV4_ROWS_BF16 = 3
} dsv4_rows;

// Some rows of a paged pool, for every query. Ids are page * page_entries + entry: physical, there
// is no block table. Negative ids are skipped. Ids of num_pages * page_entries and more are skipped
// on a GPU and refused on the host.
typedef struct dsv4_kv_list {
  const void* pages;     // null: no such list
  int32_t format;        // dsv4_rows
  int32_t page_entries;  // rows in a page
  int64_t num_pages;
  int64_t page_stride;     // bytes from page to page; a multiple of 2 (V4), 4 (V32), or the dtype's
  const int32_t* rows;     // [b, s_q, n] ids, last axis contiguous
  int64_t n;               // ids per query; 0: none
  int64_t rows_stride[2];  // of b, s_q; in elements
  const int32_t* lengths;  // [b] contiguous: queries of request i look at their first lengths[i]
                           // ids (below 0: none, above n: n), and what stands behind is not
                           // looked at; null: at all n
} dsv4_kv_list;

// Keeps what calls of one shape can share; opaque. Today: workspace, allocated at need.
typedef struct dsv4_schedule dsv4_schedule;

#define DSV4_HOST (-1)

// All strides in elements and free, all last axes contiguous; null where it says so. On a GPU every
// pointer is device memory (16-byte alignment of q, out and pages is what the fast
// implementations want), on the host all of it is host memory. Start from zeros:
// dsv4_sparse_mla_params p = {sizeof p};
typedef struct dsv4_sparse_mla_params {
  size_t size;     // sizeof(dsv4_sparse_mla_params); a library with another struct refuses
  int32_t device;  // CUDA ordinal, or DSV4_HOST: pointers are host memory, the CPU computes

  // What the result may depend on. exact: 0 rounds exp(z_j - m) to bf16 for the value product, as
  // the released model does; 1 keeps f32 everywhere (slow on a GPU). batch_invariant: 1 uses only
  // implementations where the bits of a query depend on nothing but its own rows.
  int32_t exact;
  int32_t batch_invariant;
  const char* implementation;  // null: the first that fits; else that one or DSV4_UNSUPPORTED

  int64_t b, s_q, h, d, d_v;  // requests, queries of each, heads, width of keys and of values

  const void* q;  // [b, s_q, h, d]
  int32_t q_dtype;
  int64_t q_stride[3];  // of b, s_q, h

  dsv4_kv_list window, compressed;

  const float* sink;  // [h] natural logarithm, +-inf legal; null: none
  float scale;        // > 0
  // 1: out = sum_j exp(z_j - m) v_j, without sink, for merging; wants max_logits
  int32_t unnormalized;

  void* out;  // [b, s_q, h, d_v]; without any valid row 0
  int32_t out_dtype;
  int64_t out_stride[3];  // of b, s_q, h

  float* lse;             // [b, h, s_q] ln(sum_j exp(z_j)), sink not in it; without any valid row
                          // +inf; or null
  int64_t lse_stride[2];  // of b, h
  float* max_logits;  // [b, h, s_q] max_j z_j, natural units; without any valid row -inf; or null
  int64_t max_logits_stride[2];  // of b, h

  dsv4_schedule* schedule;  // used when no workspace is given; or null
} dsv4_sparse_mla_params;

// Bytes that dsv4_sparse_mla() takes from its workspace for these arguments, often 0. Pointers are
// looked at for presence and alignment only. 0 on the host.
DSV4_API int dsv4_sparse_mla_workspace_bytes(const dsv4_sparse_mla_params* params, size_t* bytes);

// On a GPU: enqueues on `stream` (a cudaStream_t of params->device; null: the legacy default
// stream) and returns. With a workspace nothing is allocated and nothing waits, so that it may be
// captured into a graph. workspace: device memory, 256-byte aligned, of at least the bytes above;
// it is free again when the stream has passed the call. Null: the schedule's is used, and where
// there is none DSV4_OUT_OF_ROOM says how much is wanted. Failures of kernels, when they run, are
// CUDA's to report.
// On the host: computes, on OpenMP's threads, and returns; workspace and stream are not looked at.
DSV4_API int dsv4_sparse_mla(const dsv4_sparse_mla_params* params, void* workspace,
                             size_t workspace_bytes, void* stream);

// A schedule serves calls that come one after the other on one stream, and their graphs; threads
// take turns. It allocates when a call wants more workspace than any before; while the stream is
// captured that is refused (DSV4_OUT_OF_ROOM), so make the call once before the capture. What it
// has allocated stays until it is destroyed, which waits for the device.
DSV4_API int dsv4_schedule_create(dsv4_schedule** schedule);
DSV4_API void dsv4_schedule_destroy(dsv4_schedule* schedule);  // null is legal

#ifdef __cplusplus
}
#endif
