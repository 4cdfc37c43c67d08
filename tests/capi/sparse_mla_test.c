// include/dsv4_sparse_mla.h from C99, on the host: results by hand, strides, both packed forms, the
// line of every refusal, workspace. What needs a GPU is in python/tests.

#include "dsv4_sparse_mla.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

static int failures = 0;

#define CHECK(condition)                                             \
  do {                                                               \
    if (!(condition)) {                                              \
      printf("%s:%d: failed: %s\n", __FILE__, __LINE__, #condition); \
      ++failures;                                                    \
    }                                                                \
  } while (0)

static int near(float got, double want) {
  return fabs((double)got - want) <= 1e-6 * (1 + fabs(want));
}

static void says(int status, int want, const char* part) {
  if (status == want && strstr(dsv4_last_error(), part) != NULL) return;
  printf("status %d (want %d), '%s' does not hold '%s'\n", status, want, dsv4_last_error(), part);
  ++failures;
}

static int call(const dsv4_sparse_mla_params* p) {
  return dsv4_sparse_mla(p, NULL, 0, NULL);
}

// One query of one head over two unit vectors: z = (1, 2), so the output is the weights.
typedef struct TwoKeys {
  float q[2], keys[4], sink[1], out[2], lse[1], max_logits[1];
  int32_t rows[2];
  dsv4_sparse_mla_params p;
} TwoKeys;

static void two_keys(TwoKeys* t) {
  memset(t, 0, sizeof *t);
  t->q[0] = 1, t->q[1] = 2;
  t->keys[0] = 1, t->keys[3] = 1;
  t->rows[1] = 1;
  t->sink[0] = 0.5f;
  dsv4_sparse_mla_params* p = &t->p;
  p->size = sizeof *p;
  p->device = DSV4_HOST;
  p->exact = 1;
  p->b = p->s_q = p->h = 1;
  p->d = p->d_v = 2;
  p->q = t->q;
  p->q_dtype = p->out_dtype = DSV4_F32;
  p->q_stride[0] = p->q_stride[1] = p->q_stride[2] = 2;
  p->window.pages = t->keys;
  p->window.format = DSV4_ROWS_F32;
  p->window.page_entries = 2;
  p->window.num_pages = 1;
  p->window.page_stride = 16;
  p->window.rows = t->rows;
  p->window.n = 2;
  p->window.rows_stride[0] = p->window.rows_stride[1] = 2;
  p->sink = t->sink;
  p->scale = 1;
  p->out = t->out;
  p->out_stride[0] = p->out_stride[1] = p->out_stride[2] = 2;
  p->lse = t->lse;
  p->lse_stride[0] = p->lse_stride[1] = 1;
  p->max_logits = t->max_logits;
  p->max_logits_stride[0] = p->max_logits_stride[1] = 1;
}

static void test_values(void) {
  TwoKeys t;
  two_keys(&t);
  CHECK(call(&t.p) == DSV4_OK);
  const double sum = exp(1) + exp(2) + exp(0.5);
  CHECK(near(t.out[0], exp(1) / sum) && near(t.out[1], exp(2) / sum));
  CHECK(near(t.lse[0], log(exp(1) + exp(2))) && near(t.max_logits[0], 2));

  t.p.unnormalized = 1;
  CHECK(call(&t.p) == DSV4_OK);
  CHECK(near(t.out[0], exp(-1)) && near(t.out[1], 1));

  two_keys(&t);  // the second key in the other list, and one value of two
  t.p.compressed = t.p.window;
  t.p.compressed.rows = t.rows + 1;
  t.p.window.n = t.p.compressed.n = 1;
  t.p.d_v = 1;
  t.out[1] = 7;
  CHECK(call(&t.p) == DSV4_OK);
  CHECK(near(t.out[0], exp(1) / sum) && t.out[1] == 7);

  two_keys(&t);  // released rounding: exp(-1) = 0.36788 becomes bf16 0.3671875, the sum stays
  t.p.exact = 0;
  CHECK(call(&t.p) == DSV4_OK);
  CHECK(near(t.out[0], 0.3671875 / (sum / exp(2))));
}

static void test_corners(void) {
  TwoKeys t;
  two_keys(&t);
  t.rows[0] = -1, t.rows[1] = INT32_MIN;
  t.out[0] = t.out[1] = NAN;
  CHECK(call(&t.p) == DSV4_OK);
  CHECK(t.out[0] == 0 && t.out[1] == 0);
  CHECK(isinf(t.lse[0]) && t.lse[0] > 0 && isinf(t.max_logits[0]) && t.max_logits[0] < 0);

  two_keys(&t);  // what stands behind a length is not looked at
  const int32_t length = 1;
  t.rows[1] = INT32_MAX;
  t.p.window.lengths = &length;
  t.p.sink = NULL;
  CHECK(call(&t.p) == DSV4_OK);
  CHECK(t.out[0] == 1 && t.out[1] == 0 && t.lse[0] == 1);

  two_keys(&t);
  t.sink[0] = INFINITY;
  CHECK(call(&t.p) == DSV4_OK);
  CHECK(t.out[0] == 0 && t.out[1] == 0 && near(t.lse[0], log(exp(1) + exp(2))));
  t.sink[0] = -INFINITY;
  CHECK(call(&t.p) == DSV4_OK);
  CHECK(near(t.out[0], 1 / (1 + exp(1))));

  two_keys(&t);
  t.p.b = 0;
  CHECK(call(&t.p) == DSV4_OK);
}

// Two requests of two queries and two heads, everything with gaps: an element is where the strides
// say, and nothing else is written.
static void test_strides(void) {
  enum { kB = 2, kQueries = 2, kHeads = 2 };
  TwoKeys t;
  two_keys(&t);
  float q[200], out[200], lse[64];
  int32_t rows[64];
  for (int i = 0; i < 200; ++i) q[i] = NAN, out[i] = 7;
  for (int i = 0; i < 64; ++i) lse[i] = 7, rows[i] = INT32_MAX;
  const int64_t q_stride[3] = {60, 20, 5}, out_stride[3] = {90, 11, 30}, lse_stride[2] = {20, 3};
  const int64_t rows_stride[2] = {20, 7};
  for (int b = 0; b < kB; ++b) {
    for (int s = 0; s < kQueries; ++s) {
      for (int h = 0; h < kHeads; ++h) {
        float* to = q + b * q_stride[0] + s * q_stride[1] + h * q_stride[2];
        to[0] = (float)(b + 2 * s), to[1] = (float)(4 * h);
      }
      for (int j = 0; j < 2; ++j) rows[b * rows_stride[0] + s * rows_stride[1] + j] = j;
    }
  }
  t.p.b = kB, t.p.s_q = kQueries, t.p.h = kHeads;
  t.p.q = q, t.p.out = out, t.p.lse = lse, t.p.window.rows = rows;
  t.p.sink = NULL, t.p.max_logits = NULL;
  memcpy(t.p.q_stride, q_stride, sizeof q_stride);
  memcpy(t.p.out_stride, out_stride, sizeof out_stride);
  memcpy(t.p.lse_stride, lse_stride, sizeof lse_stride);
  memcpy(t.p.window.rows_stride, rows_stride, sizeof rows_stride);
  CHECK(call(&t.p) == DSV4_OK);
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
  for (int format = DSV4_ROWS_V4; format <= DSV4_ROWS_V32; ++format) {
    const int v32 = format == DSV4_ROWS_V32, nope = v32 ? 512 : 448, groups = v32 ? 4 : 7;
    unsigned char* row = pages + kPage;
    memset(pages, 0x7f, sizeof pages);  // NaN in e4m3
    memset(row, 0x38, (size_t)nope);    // 1.0
    for (int g = 0; g < groups; ++g) {
      if (v32) memcpy(row + nope + 4 * g, &half, 4);
      if (!v32) row[3 * 576 + g] = 126;  // 2^-1, behind the three rows of a page
    }
    unsigned char* rope = row + nope + (v32 ? 16 : 0);
    for (int c = 0; c < 64; ++c) rope[2 * c] = 0x80, rope[2 * c + 1] = 0x3e;  // 0.25
    float q[576], out[512];
    for (int c = 0; c < 576; ++c) q[c] = 1;
    const int32_t id = 3;
    TwoKeys t;
    two_keys(&t);
    t.p.d = v32 ? 576 : 512, t.p.d_v = 512;
    t.p.q = q, t.p.out = out, t.p.sink = NULL;
    t.p.window.pages = pages, t.p.window.format = format, t.p.window.page_entries = 3;
    t.p.window.num_pages = 2, t.p.window.page_stride = kPage;
    t.p.window.rows = &id, t.p.window.n = 1;
    CHECK(call(&t.p) == DSV4_OK);
    for (int c = 0; c < 512; ++c) CHECK(out[c] == (c < nope ? 0.5f : 0.25f));
    CHECK(t.max_logits[0] == (float)(0.5 * nope + 0.25 * 64));
  }
}

static void test_refusals(void) {
  TwoKeys t;
  size_t bytes = 1;
  says(dsv4_sparse_mla(NULL, NULL, 0, NULL), DSV4_INVALID_ARGUMENT, "params is null");
  two_keys(&t);
  t.p.size = 8;
  says(call(&t.p), DSV4_INVALID_ARGUMENT, "params.size=8");
  two_keys(&t);
  t.p.device = -2;
  says(call(&t.p), DSV4_INVALID_ARGUMENT, "device=-2");
  two_keys(&t);
  t.p.q_dtype = 9;
  says(call(&t.p), DSV4_INVALID_ARGUMENT, "q_dtype=9");
  two_keys(&t);
  t.p.window.format = 5;
  says(call(&t.p), DSV4_INVALID_ARGUMENT, "window.format=5");
  two_keys(&t);
  t.p.compressed.rows = t.rows;
  says(call(&t.p), DSV4_INVALID_ARGUMENT, "compressed has rows but no pages");
  two_keys(&t);
  t.p.window.page_stride = 18;
  says(call(&t.p), DSV4_INVALID_ARGUMENT, "window.page_stride=18 bytes: want a multiple of 4");
  two_keys(&t);
  t.p.window.page_entries = 0;
  says(call(&t.p), DSV4_INVALID_ARGUMENT, "window.page_entries=0");
  two_keys(&t);
  t.p.window.format = DSV4_ROWS_V4;
  says(call(&t.p), DSV4_INVALID_ARGUMENT, "window: rows of 512 values for queries of 2");
  two_keys(&t);
  t.p.q = NULL;
  says(call(&t.p), DSV4_INVALID_ARGUMENT, "q: want");
  two_keys(&t);
  t.p.out = NULL;
  says(call(&t.p), DSV4_INVALID_ARGUMENT, "out: want");
  two_keys(&t);
  t.p.h = -1;
  says(call(&t.p), DSV4_INVALID_ARGUMENT, "is -1");
  two_keys(&t);
  t.p.d_v = 3;
  says(call(&t.p), DSV4_INVALID_ARGUMENT, "d_v=3");
  two_keys(&t);
  t.p.scale = 0;
  says(call(&t.p), DSV4_INVALID_ARGUMENT, "scale=0");
  two_keys(&t);
  t.p.unnormalized = 1, t.p.max_logits = NULL;
  says(call(&t.p), DSV4_INVALID_ARGUMENT, "without max_logits");
  two_keys(&t);
  t.rows[1] = 2;
  says(call(&t.p), DSV4_INVALID_ARGUMENT, "is row 2 of a pool of 2");
  two_keys(&t);
  t.p.implementation = "fastest";
  says(call(&t.p), DSV4_UNSUPPORTED, "cpu: not the forced implementation");
  says(dsv4_sparse_mla_workspace_bytes(&t.p, NULL), DSV4_INVALID_ARGUMENT, "bytes is null");
  says(dsv4_sparse_mla_workspace_bytes(&t.p, &bytes), DSV4_UNSUPPORTED, "not the forced implementation");
  says(dsv4_schedule_create(NULL), DSV4_INVALID_ARGUMENT, "schedule is null");
}

// No device has this many siblings, with or without CUDA in the build.
static void test_absent_device(void) {
  TwoKeys t;
  size_t bytes = 1;
  two_keys(&t);
  t.p.device = 4096;
  const int status = dsv4_sparse_mla_workspace_bytes(&t.p, &bytes);
  CHECK(status == DSV4_UNSUPPORTED && bytes == 1);
  const char* line = dsv4_last_error();
  CHECK(strstr(line, "no CUDA") != NULL || strstr(line, "no GPU cuda:4096") != NULL);
}

static void test_workspace_and_schedule(void) {
  TwoKeys t;
  size_t bytes = 1;
  two_keys(&t);
  CHECK(dsv4_sparse_mla_workspace_bytes(&t.p, &bytes) == DSV4_OK && bytes == 0);
  CHECK(dsv4_schedule_create(&t.p.schedule) == DSV4_OK && t.p.schedule != NULL);
  CHECK(call(&t.p) == DSV4_OK && t.out[0] > 0);
  dsv4_schedule_destroy(t.p.schedule);
  dsv4_schedule_destroy(NULL);
}

static void* line_of_a_fresh_thread(void* unused) {
  (void)unused;
  return (void*)(dsv4_last_error()[0] == '\0' ? "none" : NULL);
}

static void test_lines_are_per_thread(void) {
  pthread_t thread;
  void* result = NULL;
  says(call(NULL), DSV4_INVALID_ARGUMENT, "params is null");
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
  test_refusals();
  test_absent_device();
  test_workspace_and_schedule();
  test_lines_are_per_thread();
  CHECK(strlen(dsv4_version()) >= 5);
  if (failures > 0) printf("%d failures\n", failures);
  return failures > 0;
}
