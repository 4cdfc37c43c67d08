// What all functions of libdsv4_kernels.so share: status codes, tensors, and how a call runs. A
// C99 library without a framework; each op has a short header of its own (dsv4_sparse_mla.h).
//
// Every function that returns int returns a dsv4_status, never aborts and never prints, and may be
// called from any thread. Refused arguments leave the outputs as they were.
//
// Every op foo has two functions:
//
//   int dsv4_foo(const dsv4_foo_params* params, const dsv4_call* call);
//   int dsv4_foo_workspace_bytes(const dsv4_foo_params* params, const dsv4_call* call,
//                                size_t* bytes);
//
// Structs start from zeros, and their first member is their size: a library whose struct has
// another size refuses.
//
//   dsv4_foo_params p = {sizeof p};

#pragma once

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define DSV4_API __attribute__((visibility("default")))

typedef enum dsv4_status {
  DSV4_OK = 0,
  DSV4_INVALID_ARGUMENT = 1,  // an argument contradicts the header
  DSV4_UNSUPPORTED = 2,       // no implementation fits, or no such GPU
  DSV4_OUT_OF_ROOM = 3,       // memory, or the workspace is too small
  DSV4_FAILED = 4             // anything else
} dsv4_status;

// One line with the values in question: why the last failed call of this thread failed; "" before
// that. Valid until the next failed call of this thread.
DSV4_API const char* dsv4_last_error(void);
DSV4_API const char* dsv4_version(void);  // "0.2.0"

typedef enum dsv4_dtype {
  DSV4_F32 = 0,
  DSV4_BF16 = 1,
  DSV4_F16 = 2,
  DSV4_F64 = 3,
  DSV4_I32 = 4,
  DSV4_I64 = 5,
  DSV4_I16 = 6,
  DSV4_I8 = 7,
  DSV4_U8 = 8,
  DSV4_BOOL = 9,
  DSV4_E4M3 = 10,  // FP8, 4 exponent bits, no infinity
  DSV4_E8M0 = 11   // power-of-two scale
} dsv4_dtype;

#define DSV4_HOST (-1)
#define DSV4_MAX_RANK 4

// Memory of the caller with a shape; the library keeps no pointer to it after the call has run.
// All zeros: no tensor, where the header of the op allows that.
typedef struct dsv4_tensor {
  void* data;     // the first element, on a multiple of its size; null: no element is read
  int32_t dtype;  // dsv4_dtype
  int32_t rank;   // 1 to DSV4_MAX_RANK
  int64_t shape[DSV4_MAX_RANK];   // elements of each axis
  int64_t stride[DSV4_MAX_RANK];  // elements from one index to the next; the last axis has 1, the
                                  // others any
  int32_t device;    // CUDA ordinal, or DSV4_HOST: all tensors of a call are on the same
  const char* name;  // what error lines call it; null: as its header does
} dsv4_tensor;

// A tensor without gaps.
static inline dsv4_tensor dsv4_packed_tensor(const void* data, dsv4_dtype dtype, int32_t device,
                                             int32_t rank, const int64_t* shape) {
  dsv4_tensor tensor = {(void*)data, dtype, rank, {0}, {0}, device, NULL};
  int64_t step = 1;
  for (int32_t axis = rank; axis-- > 0;) {
    tensor.shape[axis] = shape[axis];
    tensor.stride[axis] = step;
    step *= shape[axis];
  }
  return tensor;
}

// Keeps what calls of one shape can share; opaque. Today: workspace, allocated at need.
//
// A schedule serves calls that come one after the other on one stream, and their graphs; threads
// take turns. It allocates when a call needs more workspace than any before. While the stream is
// captured that is refused (DSV4_OUT_OF_ROOM), so make the call once before the capture. What it
// has allocated stays until it is destroyed, which waits for the device.
typedef struct dsv4_schedule dsv4_schedule;
DSV4_API int dsv4_schedule_create(dsv4_schedule** schedule);
DSV4_API void dsv4_schedule_destroy(dsv4_schedule* schedule);  // null is legal

// How a call runs. A null dsv4_call* means all zeros.
//
// On a GPU a call enqueues and returns. With a workspace nothing is allocated and nothing waits, so
// it may be captured into a graph; a call that waits all the same says so. Failures of kernels,
// when they run, are CUDA's to report.
// On the host it computes, on OpenMP's threads, and returns; stream and workspace are not used.
typedef struct dsv4_call {
  size_t size;   // sizeof(dsv4_call)
  void* stream;  // a cudaStream_t of the tensors' device; null: the legacy default stream
  // Device memory, 256-byte aligned, of at least the bytes of dsv4_foo_workspace_bytes(); free
  // again when the stream has passed the call. Null: the schedule's is used, and without a schedule
  // a call that needs any returns DSV4_OUT_OF_ROOM and says how much.
  void* workspace;
  size_t workspace_bytes;
  dsv4_schedule* schedule;     // or null
  const char* implementation;  // null: the first that fits; else that one or DSV4_UNSUPPORTED
  // 0: rounds where the released model rounds. 1: keeps f32 everywhere (slow on a GPU).
  int32_t exact;
  // 1: only implementations whose bits for a token do not depend on the other tokens.
  int32_t batch_invariant;
} dsv4_call;

#ifdef __cplusplus
}
#endif
