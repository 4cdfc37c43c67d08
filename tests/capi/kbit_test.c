// include/dsv4_kbit.h from C99, on the host: results by hand, layouts, and the line of refusals.

#include "dsv4_kbit.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "tests/capi/capi_check.h"

static dsv4_tensor host(const void* data, dsv4_dtype dtype, int32_t rank, int64_t a, int64_t b,
                        int64_t c) {
  const int64_t shape[3] = {a, b, c};
  return dsv4_packed_tensor(data, dtype, DSV4_HOST, rank, shape);
}

// Two bits, 128 rows of 64 columns: row i has the code (i + j) % 4 in column j, and scale 1.
enum { kRows = 128, kColumns = 64, kBits = 2, kExperts = 3 };

typedef struct Weight {
  float values[kRows * kColumns], codebook[4];
  int32_t data[kRows * 2 * kBits];
  uint8_t scale[kRows * 2];
  dsv4_weight view;
} Weight;

static void make_weight(Weight* w) {
  memset(w, 0, sizeof *w);
  const float book[4] = {-1, -0.25f, 0.5f, 1};
  memcpy(w->codebook, book, sizeof book);
  for (int i = 0; i < kRows * kColumns; ++i) w->values[i] = book[(i / kColumns + i) % 4];
  dsv4_quantize_kbit_params q;
  memset(&q, 0, sizeof q);
  q.size = sizeof q;
  q.bits = kBits;
  q.x = host(w->values, DSV4_F32, 2, kRows, kColumns, 0);
  q.codebook = host(w->codebook, DSV4_F32, 1, 4, 0, 0);
  q.data = host(w->data, DSV4_I32, 2, kRows, 2 * kBits, 0);
  q.scale = host(w->scale, DSV4_U8, 2, kRows, 2, 0);
  CHECK(dsv4_quantize_kbit(&q, NULL) == DSV4_OK);
  w->view.format = DSV4_WEIGHT_KBIT;
  w->view.bits = kBits;
  w->view.n = kRows, w->view.k = kColumns;
  w->view.data = q.data, w->view.scale = q.scale, w->view.codebook = q.codebook;
}

static void test_quantize(void) {
  static Weight w;
  static float back[kRows * kColumns];
  make_weight(&w);
  CHECK(w.scale[0] == 0xb0);                 // 1
  CHECK(w.data[0] == (int32_t)0xaaaaaaaau);  // low bits of 0, 1, 2, 3, ...
  CHECK(w.data[1] == (int32_t)0xccccccccu);
  dsv4_dequantize_kbit_params d;
  memset(&d, 0, sizeof d);
  d.size = sizeof d;
  d.weight = w.view;
  d.out = host(back, DSV4_F32, 2, kRows, kColumns, 0);
  CHECK(dsv4_dequantize_kbit(&d, NULL) == DSV4_OK);
  CHECK(memcmp(back, w.values, sizeof back) == 0);

  float book[4] = {0}, scale = 0;
  CHECK(dsv4_create_normal_float_codebook(2, book) == DSV4_OK && book[3] == 1 && book[0] == -1);
  says(dsv4_kbit_codebook("e2m1", 3, book), DSV4_INVALID_ARGUMENT, "no codebook 'e2m1' of 3 bits");
  float large[2] = {100, 1};
  const dsv4_tensor x = host(large, DSV4_F32, 2, 1, 2, 0);
  CHECK(dsv4_kbit_tensor_scale(&x, &scale) == DSV4_OK && scale == 8);
}

// The product of every layout has the bits of the product of rows.
static void test_layouts(void) {
  static Weight w;
  static int32_t tiles[kRows * 2 * kBits];
  static uint8_t tile_scales[kRows * 2], image[1 << 16];
  static float x[4 * kColumns], want[4 * kRows], got[4 * kRows];
  make_weight(&w);
  for (int i = 0; i < 4 * kColumns; ++i) x[i] = (float)(i % 7) - 3;
  dsv4_kbit_linear_params p;
  memset(&p, 0, sizeof p);
  p.size = sizeof p;
  p.x = host(x, DSV4_F32, 2, 4, kColumns, 0);
  p.weight = w.view;
  p.out = host(want, DSV4_F32, 2, 4, kRows, 0);
  CHECK(dsv4_kbit_linear(&p, NULL) == DSV4_OK);
  for (int m = 0; m < 4; ++m) {
    for (int n = 0; n < kRows; ++n) {
      float sum = 0;
      for (int k = 0; k < kColumns; ++k) sum += x[m * kColumns + k] * w.values[n * kColumns + k];
      CHECK(want[m * kRows + n] == sum);  // multiples of 1/4: any order is exact
    }
  }
  p.out = host(got, DSV4_F32, 2, 4, kRows, 0);
  CHECK(dsv4_kbit_scalar_gemv(&p, NULL) == DSV4_OK && memcmp(want, got, sizeof got) == 0);
  says(dsv4_kbit_gemm_prod(&p, NULL), DSV4_INVALID_ARGUMENT, "want a k-bit weight in tiles");

  dsv4_repack_kbit_params r;
  memset(&r, 0, sizeof r);
  r.size = sizeof r;
  r.from = w.view;
  says(dsv4_repack_kbit(&r, NULL), DSV4_INVALID_ARGUMENT, "from and to are both in layout 0");
  r.to.layout = DSV4_TILED;
  r.to.data = host(tiles, DSV4_I32, 3, 1, kRows, 2 * kBits);
  r.to.scale = host(tile_scales, DSV4_U8, 3, 1, kRows, 2);
  CHECK(dsv4_repack_kbit(&r, NULL) == DSV4_OK);
  p.weight.layout = DSV4_TILED, p.weight.data = r.to.data, p.weight.scale = r.to.scale;
  memset(got, 0, sizeof got);
  CHECK(dsv4_kbit_gemm_prod(&p, NULL) == DSV4_OK && memcmp(want, got, sizeof got) == 0);
  says(dsv4_kbit_scalar_gemv(&p, NULL), DSV4_INVALID_ARGUMENT, "want a k-bit weight in rows");

  int64_t bytes = 0;
  CHECK(dsv4_kbit_image_bytes(&w.view, &bytes) == DSV4_OK && bytes <= (int64_t)sizeof image);
  r.from = p.weight;  // from tiles
  r.to.layout = DSV4_IMAGE;
  r.to.data = host(image, DSV4_U8, 1, bytes, 0, 0);
  CHECK(dsv4_repack_kbit(&r, NULL) == DSV4_OK);
  p.weight.layout = DSV4_IMAGE, p.weight.data = r.to.data;
  memset(got, 0, sizeof got);
  CHECK(dsv4_kbit_linear(&p, NULL) == DSV4_OK && memcmp(want, got, sizeof got) == 0);
  p.weight.data = host(image, DSV4_U8, 1, bytes - 16, 0, 0);
  says(dsv4_kbit_linear(&p, NULL), DSV4_INVALID_ARGUMENT, "an image of");
  size_t workspace = 1;
  CHECK(dsv4_kbit_linear_workspace_bytes(&p, NULL, &workspace) == DSV4_OK && workspace == 0);
}

// Three experts with 0, 3 and 1 rows; then a mixture whose down is the transposed identity of scale
// one, so that sums can be made by hand.
static void test_scale_tiles(void) {
  uint8_t rows[130 * 5], tiles[2 * 2 * 512], back[sizeof rows];
  for (size_t i = 0; i < sizeof rows; ++i) rows[i] = (uint8_t)(i * 7 + 1);
  dsv4_repack_scales_params p;
  memset(&p, 0, sizeof p);
  p.size = sizeof p;
  p.rows = host(rows, DSV4_U8, 2, 130, 5, 0);
  p.tiles = host(tiles, DSV4_U8, 3, 2, 2, 512);
  CHECK(dsv4_repack_scales(&p, NULL) == DSV4_OK);
  CHECK(tiles[0] == rows[0] && tiles[4] == rows[32 * 5] && tiles[17] == rows[1 * 5 + 1]);
  CHECK(tiles[512] == rows[4] && tiles[513] == 0 && tiles[1024 + 16] == rows[129 * 5]);
  p.to_rows = 1;
  p.rows = host(back, DSV4_U8, 2, 130, 5, 0);
  CHECK(dsv4_repack_scales(&p, NULL) == DSV4_OK);
  CHECK(memcmp(rows, back, sizeof rows) == 0);
  p.tiles = host(tiles, DSV4_U8, 3, 1, 2, 512);
  says(dsv4_repack_scales(&p, NULL), DSV4_INVALID_ARGUMENT, "tiles: want [2, 2, 512]");
}

static void test_experts(void) {
  static Weight w;
  static float x[4 * kColumns], out[4 * kRows], dense[4 * kRows];
  make_weight(&w);
  for (int i = 0; i < 4 * kColumns; ++i) x[i] = (float)(i % 5) - 2;
  dsv4_weight weights[kExperts] = {w.view, w.view, w.view};
  weights[2].scale2 = 2;
  const int32_t offsets[kExperts + 1] = {0, 0, 3, 4};
  dsv4_kbit_expert_linear_params p;
  memset(&p, 0, sizeof p);
  p.size = sizeof p;
  p.x = host(x, DSV4_F32, 2, 4, kColumns, 0);
  p.weights = weights, p.num_experts = kExperts;
  p.offsets = host(offsets, DSV4_I32, 1, kExperts + 1, 0, 0);
  p.out = host(out, DSV4_F32, 2, 4, kRows, 0);
  CHECK(dsv4_kbit_expert_linear(&p, NULL) == DSV4_OK);
  dsv4_kbit_linear_params one;
  memset(&one, 0, sizeof one);
  one.size = sizeof one;
  one.x = p.x, one.weight = w.view, one.out = host(dense, DSV4_F32, 2, 4, kRows, 0);
  CHECK(dsv4_kbit_linear(&one, NULL) == DSV4_OK);
  for (int i = 0; i < 4 * kRows; ++i) CHECK(out[i] == (i < 3 * kRows ? 1 : 2) * dense[i]);
  says(dsv4_kbit_grouped_gemm(&p, NULL), DSV4_INVALID_ARGUMENT, "want a k-bit weight in tiles");
  const int32_t wrong[kExperts + 1] = {0, 4, 3, 4};
  p.offsets = host(wrong, DSV4_I32, 1, kExperts + 1, 0, 0);
  says(dsv4_kbit_expert_linear(&p, NULL), DSV4_INVALID_ARGUMENT, "offsets[2] is 3, after 4");
}

// d = i = 1 of floats: out = sum of weight * gelu(gate x) * up x * down, in ascending order.
static void test_moe(void) {
  const float one = 1, two = 2, x = 3;
  const int32_t chosen[2] = {1, 0};
  const float shares[2] = {0.25f, 0.75f};
  float out = 0;
  uint16_t rounded = 0;
  dsv4_weight unit;
  memset(&unit, 0, sizeof unit);
  unit.n = unit.k = 1;
  unit.data = host(&one, DSV4_F32, 2, 1, 1, 0);
  dsv4_weight gate[2] = {unit, unit}, down[2] = {unit, unit};
  down[1].data = host(&two, DSV4_F32, 2, 1, 1, 0);
  dsv4_kbit_moe_params p;
  memset(&p, 0, sizeof p);
  p.size = sizeof p;
  p.x = host(&x, DSV4_F32, 2, 1, 1, 0);
  p.gate = p.up = gate, p.down = down, p.num_experts = 2;
  p.experts = host(chosen, DSV4_I32, 2, 1, 2, 0);
  p.expert_weights = host(shares, DSV4_F32, 2, 1, 2, 0);
  p.activation = DSV4_GELU;
  p.out = host(&out, DSV4_F32, 2, 1, 1, 0);
  const double h = 3 * 0.5 * (1 + erf(3 / sqrt(2))) * 3, want = h * (0.75 + 0.25 * 2);
  CHECK(dsv4_kbit_moe(&p, NULL) == DSV4_OK && fabs((double)out - want) < 1e-5);
  p.out = host(&rounded, DSV4_BF16, 2, 1, 1, 0);
  CHECK(dsv4_kbit_moe(&p, NULL) == DSV4_OK);
  uint32_t bits = 0;
  memcpy(&bits, &out, sizeof bits);
  CHECK(rounded == (bits + 0x7fff + (bits >> 16 & 1)) >> 16);
  p.limit = 2;  // gate min(3, 2), up clamp to 2
  p.activation = DSV4_SILU, p.out = host(&out, DSV4_F32, 2, 1, 1, 0);
  CHECK(dsv4_kbit_moe(&p, NULL) == DSV4_OK);
  CHECK(fabs((double)out - 2 / (1 + exp(-2)) * 2 * 1.25) < 1e-5);
  p.activation = 3;
  says(dsv4_kbit_moe(&p, NULL), DSV4_INVALID_ARGUMENT, "activation=3");
  p.activation = 0, p.size = 1;
  says(dsv4_kbit_moe(&p, NULL), DSV4_INVALID_ARGUMENT, "params.size=1");
}

int main(void) {
  test_quantize();
  test_layouts();
  test_scale_tiles();
  test_experts();
  test_moe();
  return finish();
}
