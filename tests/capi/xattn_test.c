// include/dsv4_xattn.h from C99, on the host: results by hand, defaults, and the line of refusals.

#include "dsv4_xattn.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "tests/capi/capi_check.h"

static int near(float got, double want) {
  return fabs((double)got - want) <= 1e-5 * (1 + fabs(want));
}

static dsv4_tensor host(const void* data, dsv4_dtype dtype, int32_t rank, const int64_t* shape) {
  return dsv4_packed_tensor(data, dtype, DSV4_HOST, rank, shape);
}

// Four blocks of 128 positions, one head of width 2. All keys of block 1 have (4, 0), all others
// (0, 0); all queries (1, 0); values are the number of their block.
enum { kTokens = 512, kBlocks = 4 };

typedef struct Prompt {
  float q[kTokens * 2], k[kTokens * 2], v[kTokens * 2], out[kTokens * 2], lse[kTokens];
  float sums[kBlocks * kBlocks], tau[1];
  int32_t cu[2], counts[kBlocks], indices[kBlocks * kBlocks];
  dsv4_prefill_batch batch;
} Prompt;

static const int64_t kRows[3] = {kTokens, 1, 2}, kLengths[1] = {2}, kOne[1] = {1};
static const int64_t kSquare[4] = {1, 1, kBlocks, kBlocks}, kCounts[3] = {1, 1, kBlocks};
static const int64_t kLse[2] = {1, kTokens};

static void prompt(Prompt* p) {
  memset(p, 0, sizeof *p);
  for (int i = 0; i < kTokens; ++i) {
    p->q[2 * i] = 1;
    p->k[2 * i] = i / 128 == 1 ? 4 : 0;
    p->v[2 * i] = (float)(i / 128);
    p->v[2 * i + 1] = 1;
  }
  p->cu[1] = kTokens;
  p->batch.cu_q = p->batch.cu_kv = host(p->cu, DSV4_I32, 1, kLengths);
}

static dsv4_xattn_scores_params scores_of(Prompt* p) {
  dsv4_xattn_scores_params s;
  memset(&s, 0, sizeof s);
  s.size = sizeof s;
  s.batch = p->batch;
  s.q = host(p->q, DSV4_F32, 3, kRows), s.k = host(p->k, DSV4_F32, 3, kRows);
  s.stride = 8, s.scale = 1;
  s.sums = host(p->sums, DSV4_F32, 4, kSquare);
  return s;
}

static dsv4_xattn_select_params selection_of(Prompt* p) {
  dsv4_xattn_select_params s;
  memset(&s, 0, sizeof s);
  s.size = sizeof s;
  s.batch = p->batch;
  s.sums = host(p->sums, DSV4_F32, 4, kSquare);
  s.tau = host(p->tau, DSV4_F32, 1, kOne);
  s.counts = host(p->counts, DSV4_I32, 3, kCounts);
  s.indices = host(p->indices, DSV4_I32, 4, kSquare);
  return s;
}

static dsv4_block_sparse_attention_params attention_of(Prompt* p) {
  dsv4_block_sparse_attention_params a;
  memset(&a, 0, sizeof a);
  a.size = sizeof a;
  a.batch = p->batch;
  a.q = host(p->q, DSV4_F32, 3, kRows), a.k = host(p->k, DSV4_F32, 3, kRows);
  a.v = host(p->v, DSV4_F32, 3, kRows), a.out = host(p->out, DSV4_F32, 3, kRows);
  a.counts = host(p->counts, DSV4_I32, 3, kCounts);
  a.indices = host(p->indices, DSV4_I32, 4, kSquare);
  a.scale = 1;
  a.lse = host(p->lse, DSV4_F32, 2, kLse);
  return a;
}

static dsv4_xattn_prefill_params prefill_of(Prompt* p) {
  dsv4_xattn_prefill_params a;
  memset(&a, 0, sizeof a);
  a.size = sizeof a;
  a.batch = p->batch;
  a.q = host(p->q, DSV4_F32, 3, kRows), a.k = host(p->k, DSV4_F32, 3, kRows);
  a.v = host(p->v, DSV4_F32, 3, kRows), a.out = host(p->out, DSV4_F32, 3, kRows);
  a.max_queries = a.max_keys = kTokens;
  a.stride = 8;
  a.tau = host(p->tau, DSV4_F32, 1, kOne);
  a.scale = 1;
  return a;
}

// Row 3, and the last query, which sees everything in it: 128 keys of exp(4), 384 of 1.
static void test_stages(void) {
  static Prompt p;
  prompt(&p);
  const dsv4_xattn_scores_params s = scores_of(&p);
  CHECK(dsv4_xattn_scores(&s, NULL) == DSV4_OK);
  CHECK(near(p.sums[0], 16) && p.sums[1] == 0);           // a row of 16 groups of 8 positions
  const double heavy = 16 * exp(4) / (16 * exp(4) + 32);  // of one group that sees blocks 0 to 2
  CHECK(p.sums[3 * kBlocks + 1] < 16 * heavy && p.sums[3 * kBlocks + 1] > 15.2 * heavy);

  const dsv4_xattn_select_params select = selection_of(&p);
  p.tau[0] = 0;
  CHECK(dsv4_xattn_select(&select, NULL) == DSV4_OK);
  CHECK(p.counts[0] == 1 && p.counts[3] == 2 && p.indices[3 * kBlocks + 1] == 3);
  CHECK(p.indices[3 * kBlocks + 2] == -1);
  p.tau[0] = 0.9f;
  CHECK(dsv4_xattn_select(&select, NULL) == DSV4_OK);
  CHECK(p.counts[3] == 3 && p.indices[3 * kBlocks + 1] == 1 && p.indices[3 * kBlocks + 2] == 3);

  const dsv4_block_sparse_attention_params a = attention_of(&p);
  CHECK(dsv4_block_sparse_attention(&a, NULL) == DSV4_OK);
  const double sum = 128 * exp(4) + 256;  // blocks 0, 1 and 3
  CHECK(near(p.lse[kTokens - 1], log(sum)));
  CHECK(near(p.out[2 * kTokens - 2], (128 * exp(4) + 128 * 3) / sum));
  CHECK(near(p.out[2 * kTokens - 1], 1));

  static Prompt whole;  // one call, the same bits
  prompt(&whole);
  whole.tau[0] = 0.9f;
  const dsv4_xattn_prefill_params all = prefill_of(&whole);
  CHECK(dsv4_xattn_prefill(&all, NULL) == DSV4_OK);
  CHECK(memcmp(whole.out, p.out, sizeof p.out) == 0);
}

static void test_dense(void) {
  static Prompt p;
  prompt(&p);
  dsv4_block_sparse_attention_params a = attention_of(&p);
  memset(&a.counts, 0, sizeof a.counts), memset(&a.indices, 0, sizeof a.indices);
  a.max_q_blocks = kBlocks;
  CHECK(dsv4_block_sparse_attention(&a, NULL) == DSV4_OK);
  CHECK(near(p.lse[kTokens - 1], log(128 * exp(4) + 384)));
  CHECK(near(p.lse[0], 0));
  a.batch.non_causal = 1;
  CHECK(dsv4_block_sparse_attention(&a, NULL) == DSV4_OK);
  CHECK(near(p.lse[0], log(128 * exp(4) + 384)));

  static Prompt q;  // tau = 0 lists two blocks, but dense and min_length see all
  prompt(&q);
  dsv4_xattn_prefill_params all = prefill_of(&q);
  all.min_length = kTokens + 1;
  CHECK(dsv4_xattn_prefill(&all, NULL) == DSV4_OK);
  all.min_length = 0;
  all.dense = 1;
  memcpy(p.out, q.out, sizeof p.out);
  CHECK(dsv4_xattn_prefill(&all, NULL) == DSV4_OK);
  CHECK(memcmp(p.out, q.out, sizeof p.out) == 0);
  all.dense = 0;
  CHECK(dsv4_xattn_prefill(&all, NULL) == DSV4_OK);
  CHECK(memcmp(p.out, q.out, sizeof p.out) != 0);
}

static void test_refusals(void) {
  static Prompt p;
  size_t bytes = 1;
  prompt(&p);
  says(dsv4_xattn_scores(NULL, NULL), DSV4_INVALID_ARGUMENT, "params is null");
  dsv4_xattn_scores_params s = scores_of(&p);
  s.stride = 3;
  says(dsv4_xattn_scores(&s, NULL), DSV4_INVALID_ARGUMENT, "stride=3, not a power of two");
  s = scores_of(&p);
  s.batch.block = 32;
  says(dsv4_xattn_scores(&s, NULL), DSV4_INVALID_ARGUMENT, "block=32, not 64 or 128");
  s = scores_of(&p);
  memset(&s.batch.cu_kv, 0, sizeof s.batch.cu_kv);
  says(dsv4_xattn_scores(&s, NULL), DSV4_INVALID_ARGUMENT, "cu_kv is absent");
  dsv4_xattn_select_params select = selection_of(&p);
  memset(&select.tau, 0, sizeof select.tau);
  says(dsv4_xattn_select(&select, NULL), DSV4_INVALID_ARGUMENT, "neither tau nor top_k");
  dsv4_block_sparse_attention_params a = attention_of(&p);
  memset(&a.counts, 0, sizeof a.counts);
  says(dsv4_block_sparse_attention(&a, NULL), DSV4_INVALID_ARGUMENT,
       "counts is absent, but indices is not");
  dsv4_xattn_prefill_params all = prefill_of(&p);
  all.size = 8;
  says(dsv4_xattn_prefill(&all, NULL), DSV4_INVALID_ARGUMENT, "params.size=8");
  all = prefill_of(&p);
  all.max_keys = 0;
  says(dsv4_xattn_prefill(&all, NULL), DSV4_INVALID_ARGUMENT, "max_keys=0");
  all = prefill_of(&p);
  CHECK(dsv4_xattn_prefill_workspace_bytes(&all, NULL, &bytes) == DSV4_OK && bytes == 0);
}

int main(void) {
  test_stages();
  test_dense();
  test_refusals();
  return finish();
}
