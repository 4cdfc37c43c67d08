// include/dsv4_sparse_mla.h and dsv4_kernels.h from C99, on the host: results by hand, strides,
// both packed forms, the line of every refusal, workspace. capi_device_test.cc is the same on a
// GPU.

#include "dsv4_sparse_mla.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "tests/capi/capi_check.h"

static int near(float got, double want) {
  return fabs((double)got - want) <= 1e-6 * (1 + fabs(want));
}

// One query of one head over two unit vectors: z = (1, 2), so the output is the probabilities.
typedef struct TwoKeys {
  float q[2], keys[4], sink[1], out[2], lse[1], max_logits[1];
  int32_t indices[2];
  dsv4_sparse_mla_params p;
  dsv4_call how;
} TwoKeys;

static int call(const TwoKeys* t) {
  return dsv4_sparse_mla(&t->p, &t->how);
}

static dsv4_tensor host(const void* data, dsv4_dtype dtype, int32_t rank, const int64_t* shape) {
  return dsv4_packed_tensor(data, dtype, DSV4_HOST, rank, shape);
}

static void two_keys(TwoKeys* t) {
  memset(t, 0, sizeof *t);
  t->q[0] = 1, t->q[1] = 2;
  t->keys[0] = 1, t->keys[3] = 1;
  t->indices[1] = 1;
  t->sink[0] = 0.5f;
  dsv4_sparse_mla_params* p = &t->p;
  const int64_t vector[4] = {1, 1, 1, 2}, keys[3] = {1, 2, 2}, ids[3] = {1, 1, 2},
                one[3] = {1, 1, 1};
  p->size = sizeof *p;
  p->q = host(t->q, DSV4_F32, 4, vector);
  p->window.pages = host(t->keys, DSV4_F32, 3, keys);
  p->window.indices = host(t->indices, DSV4_I32, 3, ids);
  p->sink = host(t->sink, DSV4_F32, 1, one);
  p->scale = 1;
  p->out = host(t->out, DSV4_F32, 4, vector);
  p->lse = host(t->lse, DSV4_F32, 3, one);
  p->max_logits = host(t->max_logits, DSV4_F32, 3, one);
  t->how.size = sizeof t->how;
  t->how.exact = 1;
}

static const dsv4_tensor kAbsent = {0};

static void test_values(void) {
  TwoKeys t;
  two_keys(&t);
  CHECK(call(&t) == DSV4_OK);
  const double sum = exp(1) + exp(2) + exp(0.5);
  CHECK(near(t.out[0], exp(1) / sum) && near(t.out[1], exp(2) / sum));
  CHECK(near(t.lse[0], log(exp(1) + exp(2))) && near(t.max_logits[0], 2));

  t.p.unnormalized = 1;
  CHECK(call(&t) == DSV4_OK);
  CHECK(near(t.out[0], exp(-1)) && near(t.out[1], 1));

  two_keys(&t);  // the second key in the other list, and one value of two
  t.p.compressed = t.p.window;
  t.p.compressed.indices.data = t.indices + 1;
  t.p.window.indices.shape[2] = t.p.compressed.indices.shape[2] = 1;
  t.p.out.shape[3] = 1;
  t.out[1] = 7;
  CHECK(call(&t) == DSV4_OK);
  CHECK(near(t.out[0], exp(1) / sum) && t.out[1] == 7);

  two_keys(&t);  // released rounding: exp(-1) = 0.36788 becomes bf16 0.3671875, the sum stays
  t.how.exact = 0;
  CHECK(call(&t) == DSV4_OK);
  CHECK(near(t.out[0], 0.3671875 / (sum / exp(2))));
}

static void test_corners(void) {
  TwoKeys t;
  two_keys(&t);
  t.indices[0] = -1, t.indices[1] = INT32_MIN;
  t.out[0] = t.out[1] = NAN;
  CHECK(call(&t) == DSV4_OK);
  CHECK(t.out[0] == 0 && t.out[1] == 0);
  CHECK(isinf(t.lse[0]) && t.lse[0] > 0 && isinf(t.max_logits[0]) && t.max_logits[0] < 0);

  two_keys(&t);  // what comes after a length is not read
  const int32_t length = 1;
  const int64_t one = 1;
  t.indices[1] = INT32_MAX;
  t.p.window.topk_length = host(&length, DSV4_I32, 1, &one);
  t.p.sink = kAbsent;
  CHECK(call(&t) == DSV4_OK);
  CHECK(t.out[0] == 1 && t.out[1] == 0 && t.lse[0] == 1);

  two_keys(&t);
  t.sink[0] = INFINITY;
  CHECK(call(&t) == DSV4_OK);
  CHECK(t.out[0] == 0 && t.out[1] == 0 && near(t.lse[0], log(exp(1) + exp(2))));
  t.sink[0] = -INFINITY;
  CHECK(call(&t) == DSV4_OK);
  CHECK(near(t.out[0], 1 / (1 + exp(1))));

  two_keys(&t);  // no request, and null pointers
  t.p.q.shape[0] = t.p.out.shape[0] = t.p.window.indices.shape[0] = 0;
  t.p.lse.shape[0] = t.p.max_logits.shape[0] = 0;
  t.p.q.data = t.p.out.data = NULL;
  CHECK(call(&t) == DSV4_OK);

  two_keys(&t);  // a cache without pages
  t.p.window.pages.shape[0] = 0, t.p.window.pages.data = NULL;
  CHECK(call(&t) == DSV4_OK && t.out[0] == 0 && isinf(t.lse[0]));
}

// Two requests of two queries and two heads, everything with gaps: an element is where the strides
// say, and nothing else is written.
static void test_strides(void) {
  enum { kB = 2, kQueries = 2, kHeads = 2 };
  TwoKeys t;
  two_keys(&t);
  float q[200], out[200], lse[64];
  int32_t indices[64];
  for (int i = 0; i < 200; ++i) q[i] = NAN, out[i] = 7;
  for (int i = 0; i < 64; ++i) lse[i] = 7, indices[i] = INT32_MAX;
  const int64_t q_stride[4] = {60, 20, 5, 1}, out_stride[4] = {90, 11, 30, 1};
  const int64_t lse_stride[3] = {20, 3, 1}, indices_stride[3] = {20, 7, 1};
  for (int b = 0; b < kB; ++b) {
    for (int s = 0; s < kQueries; ++s) {
      for (int h = 0; h < kHeads; ++h) {
        float* to = q + b * q_stride[0] + s * q_stride[1] + h * q_stride[2];
        to[0] = (float)(b + 2 * s), to[1] = (float)(4 * h);
      }
      for (int j = 0; j < 2; ++j) indices[b * indices_stride[0] + s * indices_stride[1] + j] = j;
    }
  }
  const int64_t vectors[4] = {kB, kQueries, kHeads, 2}, sums[3] = {kB, kHeads, kQueries};
  const int64_t lists[3] = {kB, kQueries, 2};
  t.p.q = host(q, DSV4_F32, 4, vectors), t.p.out = host(out, DSV4_F32, 4, vectors);
  t.p.lse = host(lse, DSV4_F32, 3, sums), t.p.window.indices = host(indices, DSV4_I32, 3, lists);
  t.p.sink = t.p.max_logits = kAbsent;
  memcpy(t.p.q.stride, q_stride, sizeof q_stride);
  memcpy(t.p.out.stride, out_stride, sizeof out_stride);
  memcpy(t.p.lse.stride, lse_stride, sizeof lse_stride);
  memcpy(t.p.window.indices.stride, indices_stride, sizeof indices_stride);
  CHECK(call(&t) == DSV4_OK);
  for (int b = 0; b < kB; ++b) {
    for (int s = 0; s < kQueries; ++s) {
      for (int h = 0; h < kHeads; ++h) {
        const double z0 = b + 2 * s, z1 = 4 * h, sum = exp(z0) + exp(z1);
        float* got = out + b * out_stride[0] + s * out_stride[1] + h * out_stride[2];
        float* got_lse = lse + b * lse_stride[0] + h * lse_stride[1] + s;
        CHECK(near(got[0], exp(z0) / sum) && near(got[1], exp(z1) / sum));
        CHECK(near(*got_lse, log(sum)));
        got[0] = got[1] = *got_lse = 7;
      }
    }
  }
  for (int i = 0; i < 200; ++i) CHECK(out[i] == 7);
  for (int i = 0; i < 64; ++i) CHECK(lse[i] == 7);
}

// One row of ones and of halves per format; a single row comes back as it is. Pages lie further
// apart than they are long, and the second of two is asked for.
static void test_packed_rows(void) {
  enum { kPage = 4096 };
  static unsigned char pages[2 * kPage];
  const float half = 0.5f;
  for (int v32 = 0; v32 <= 1; ++v32) {
    const int nope = v32 ? 512 : 448, groups = v32 ? 4 : 7;
    unsigned char* row = pages + kPage;
    memset(pages, 0x7f, sizeof pages);  // NaN in e4m3
    memset(row, 0x38, (size_t)nope);    // 1.0
    for (int g = 0; g < groups; ++g) {
      if (v32) memcpy(row + nope + 4 * g, &half, 4);
      if (!v32) row[3 * 576 + g] = 126;  // 2^-1, after the three rows of a page
    }
    unsigned char* rope = row + nope + (v32 ? 16 : 0);
    for (int c = 0; c < 64; ++c) rope[2 * c] = 0x80, rope[2 * c + 1] = 0x3e;  // 0.25
    float q[576], out[512];
    for (int c = 0; c < 576; ++c) q[c] = 1;
    const int32_t id = 3;
    TwoKeys t;
    two_keys(&t);
    const int64_t d[4] = {1, 1, 1, v32 ? 576 : 512}, d_v[4] = {1, 1, 1, 512}, one[3] = {1, 1, 1};
    const int64_t cache[3] = {2, 3, v32 ? 656 : 584};
    t.p.q = host(q, DSV4_F32, 4, d), t.p.out = host(out, DSV4_F32, 4, d_v), t.p.sink = kAbsent;
    t.p.window.pages = host(pages, v32 ? DSV4_E4M3 : DSV4_U8, 3, cache);
    t.p.window.pages.stride[0] = kPage;
    t.p.window.indices = host(&id, DSV4_I32, 3, one);
    CHECK(call(&t) == DSV4_OK);
    for (int c = 0; c < 512; ++c) CHECK(out[c] == (c < nope ? 0.5f : 0.25f));
    CHECK(t.max_logits[0] == (float)(0.5 * nope + 0.25 * 64));
  }
}

static void refuses(const TwoKeys* t, const char* part) {
  says(call(t), DSV4_INVALID_ARGUMENT, part);
}

static void test_refused_structs(void) {
  TwoKeys t;
  size_t bytes = 1;
  says(dsv4_sparse_mla(NULL, NULL), DSV4_INVALID_ARGUMENT, "params is null");
  two_keys(&t);
  t.p.size = 8;
  refuses(&t, "params.size=8");
  two_keys(&t);
  t.how.size = 8;
  refuses(&t, "call.size=8");
  two_keys(&t);
  t.how.implementation = "fastest";
  says(call(&t), DSV4_UNSUPPORTED, "cpu: not the forced");
  says(dsv4_sparse_mla_workspace_bytes(&t.p, NULL, NULL), DSV4_INVALID_ARGUMENT, "bytes is null");
  says(dsv4_sparse_mla_workspace_bytes(&t.p, &t.how, &bytes), DSV4_UNSUPPORTED, "not the forced");
  says(dsv4_schedule_create(NULL), DSV4_INVALID_ARGUMENT, "schedule is null");
}

static void test_refused_tensors(void) {
  TwoKeys t;
  two_keys(&t);
  t.p.q.device = -2;
  refuses(&t, "q.device=-2");
  two_keys(&t);
  t.p.out.device = 3;
  refuses(&t, "out is on cuda:3, q is on the host");
  two_keys(&t);
  t.p.q.dtype = 99;
  refuses(&t, "q.dtype=99");
  two_keys(&t);
  t.p.q.rank = 5;
  refuses(&t, "q.rank=5: want 1 to 4");
  two_keys(&t);
  t.p.q.shape[2] = -1;
  refuses(&t, "q.shape[2] is -1");
  two_keys(&t);
  t.p.q.stride[3] = 2;
  refuses(&t, "with a strided last axis");
  two_keys(&t);
  t.p.q.data = (char*)t.p.q.data + 2;
  refuses(&t, "want a multiple of 4 bytes");
  two_keys(&t);
  t.p.q = kAbsent;
  refuses(&t, "q is absent");
  two_keys(&t);
  t.p.out.data = NULL;
  refuses(&t, "out: want [b=1, s_q=1, h=1, d_v=2] F32|BF16, got [1, 1, 1, 2] F32 without data");
  two_keys(&t);
  t.p.sink.dtype = DSV4_F64, t.p.sink.name = "attn_sink";
  refuses(&t, "attn_sink: want [h=1] F32, got [1] F64");
}

static void test_refused_lists(void) {
  TwoKeys t;
  two_keys(&t);
  t.p.compressed.indices = t.p.window.indices;
  refuses(&t, "compressed.pages is absent, but compressed.indices is not");
  two_keys(&t);
  t.p.window.indices = kAbsent;
  refuses(&t, "window.pages without window.indices");
  two_keys(&t);
  t.p.window.pages.shape[1] = 0;
  refuses(&t, "window.pages: want rows in a page");
  two_keys(&t);
  t.p.window.pages.stride[1] = 3;
  refuses(&t, "window.pages: want the rows of a page side by side, got a stride of 3 on axis 1");
  two_keys(&t);
  t.p.window.pages.dtype = DSV4_U8;
  refuses(&t, "window.pages: want rows of 584 (V4) or 656 (V3.2) bytes, got [1, 2, 2] U8");
  two_keys(&t);
  const int64_t packed[3] = {2, 1, 656};
  static unsigned char pages[1400];
  t.p.window.pages = host(pages, DSV4_U8, 3, packed);
  t.p.window.pages.stride[0] = 658;
  refuses(&t, "window.pages: pages 658 bytes apart: want a multiple of 4");
  two_keys(&t);
  t.p.window.pages.shape[2] = 1, t.p.window.pages.stride[1] = 1;
  refuses(&t, "window: rows of 1 values for queries of 2");
  two_keys(&t);
  t.indices[1] = 2;
  refuses(&t, "is row 2 of a pool of 2");
}

static void test_refused_numbers(void) {
  TwoKeys t;
  two_keys(&t);
  t.p.out.shape[3] = 3;
  refuses(&t, "d_v=3");
  two_keys(&t);
  t.p.scale = 0;
  refuses(&t, "scale=0");
  two_keys(&t);
  t.p.unnormalized = 1, t.p.max_logits = kAbsent;
  refuses(&t, "without max_logits");
}

// No device has this many siblings, with or without CUDA in the build.
static void test_absent_device(void) {
  TwoKeys t;
  size_t bytes = 1;
  two_keys(&t);
  dsv4_tensor* const tensors[] = {&t.p.q,   &t.p.window.pages, &t.p.window.indices, &t.p.sink,
                                  &t.p.out, &t.p.lse,          &t.p.max_logits};
  for (size_t i = 0; i < sizeof tensors / sizeof *tensors; ++i) tensors[i]->device = 4096;
  const int status = dsv4_sparse_mla_workspace_bytes(&t.p, &t.how, &bytes);
  CHECK(status == DSV4_UNSUPPORTED && bytes == 1);
  const char* line = dsv4_last_error();
  CHECK(strstr(line, "no CUDA") != NULL || strstr(line, "no GPU cuda:4096") != NULL);
}

static void test_workspace_and_schedule(void) {
  TwoKeys t;
  size_t bytes = 1;
  two_keys(&t);
  CHECK(dsv4_sparse_mla_workspace_bytes(&t.p, NULL, &bytes) == DSV4_OK && bytes == 0);
  CHECK(dsv4_schedule_create(&t.how.schedule) == DSV4_OK && t.how.schedule != NULL);
  CHECK(call(&t) == DSV4_OK && t.out[0] > 0);
  dsv4_schedule_destroy(t.how.schedule);
  dsv4_schedule_destroy(NULL);
}

static void* line_of_a_fresh_thread(void* unused) {
  (void)unused;
  return (void*)(dsv4_last_error()[0] == '\0' ? "none" : NULL);
}

static void test_lines_are_per_thread(void) {
  pthread_t thread;
  void* result = NULL;
  says(dsv4_sparse_mla(NULL, NULL), DSV4_INVALID_ARGUMENT, "params is null");
  CHECK(pthread_create(&thread, NULL, line_of_a_fresh_thread, NULL) == 0);
  CHECK(pthread_join(thread, &result) == 0);
  CHECK(result != NULL);
  says(DSV4_OK, DSV4_OK, "params is null");
}

int main(void) {
  test_values();
  test_corners();
  test_strides();
  test_packed_rows();
  test_refused_structs();
  test_refused_tensors();
  test_refused_lists();
  test_refused_numbers();
  test_absent_device();
  test_workspace_and_schedule();
  test_lines_are_per_thread();
  CHECK(strlen(dsv4_version()) >= 5);
  return finish();
}
