// linear/FORMAT/t/n/k. Each call uses another matrix, so weights are read from memory. q8:
// activations are codes with scales, as in the official engine with quantized weights; to_q8: bf16,
// quantized by the call; groups: a block-diagonal weight.

#include <utility>

#include "bench/op_bench.h"
#include "bench/weight_pool.h"
#include "dsv4/base/error.h"
#include "dsv4/ops/parts/linear/linear_case.h"

namespace dsv4 {
namespace {

struct Shape {
  int64_t t, n, k;  // n and k of one group
  int64_t groups = 1;
};

struct Stored {
  const char* name;
  WeightFormat format;
  int bits = 0;
  bool q8 = false, to_q8 = false;
  DType dtype = DType::kBF16;  // of x and out, unless q8
};

struct Case {
  Stored stored;
  Shape shape;
  bench::WeightPool pool;
  bench::Arena arena;
  LinearArgs args;

  Case(const Stored& how, const Shape& size) : stored(how), shape(size) {
    Rng rng(1);
    args = test::random_linear(arena, rng,
                               {.t = size.t,
                                .x = how.q8 ? DType::kE4M3 : how.dtype,
                                .out = how.dtype,
                                .groups = size.groups,
                                .quantize_x = how.to_q8},
                               next_weight());
  }
  WeightView next_weight() {
    return pool.next(stored.format, shape.groups * shape.n, shape.k, stored.bits);
  }
  void next() { args.weight = next_weight(); }
};

void add(const Stored& stored, const Shape& shape) {
  bench::register_impls<LinearArgs>(
      fmt::format("linear/{}/t:{}/n:{}/k:{}{}", stored.name, shape.t, shape.n, shape.k,
                  shape.groups > 1 ? fmt::format("/groups:{}", shape.groups) : ""),
      linear, [=] { return std::make_shared<Case>(stored, shape); });
}

constexpr Stored kAll[] = {{"fp8_block", WeightFormat::kFp8Block},
                           {"mxfp4", WeightFormat::kMxfp4},
                           {"nvfp4", WeightFormat::kNvfp4},
                           {"k2", WeightFormat::kKbit, 2},
                           {"k3", WeightFormat::kKbit, 3},
                           {"k4", WeightFormat::kKbit, 4},
                           {"k5", WeightFormat::kKbit, 5},
                           {"bf16", WeightFormat::kBF16},
                           {"f16", WeightFormat::kF16},
                           {"f32", WeightFormat::kF32}};

// The formats of the layers of V4-Flash.
constexpr Stored kFlash[] = {{"fp8_block q8", WeightFormat::kFp8Block, 0, true},
                             {"k3 q8", WeightFormat::kKbit, 3, true},
                             {"k5 q8", WeightFormat::kKbit, 5, true},
                             {"bf16", WeightFormat::kBF16}};
constexpr Stored kFlashBf16 = kFlash[3];

// The products of dsv4_kbit.h (docs/kernels/kbit.md): k-bit weights in rows, bf16 and f16, and from
// 16 rows on beside them the same of bf16 weights, by cuBLAS. More rows are in bench/peer_kbit.py.
void add_kbit() {
  constexpr const char* kNames[][2] = {{"kbit2 bf16", "kbit2 f16"},
                                       {"kbit3 bf16", "kbit3 f16"},
                                       {"kbit4 bf16", "kbit4 f16"},
                                       {"kbit5 bf16", "kbit5 f16"}};
  for (int bits = 2; bits <= 5; ++bits) {
    for (const auto& [n, k] : {std::pair{8192, 8192}, {14336, 4096}, {5120, 2048}}) {
      for (const int64_t t : {1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 512}) {
        if (t > 64 && !bench::full_size()) continue;
        const auto* names = kNames[bits - 2];
        add({names[0], WeightFormat::kKbit, bits}, {t, n, k});
        add({names[1], WeightFormat::kKbit, bits, false, false, DType::kF16}, {t, n, k});
        if (bits == 2 && t >= 16) add({"kbit peer bf16", WeightFormat::kBF16}, {t, n, k});
      }
    }
  }
}

const bool kRegistered = [] {
  for (const Stored& stored : kAll) {  // a token, a small batch, a prompt
    for (const int64_t t : {1, 2, 4, 16}) add(stored, {t, 16384, 16384});
    for (const int64_t t : {1, 64, 256}) add(stored, {t, 1024, 1024});
    add(stored, {256, 4096, 4096});
  }
  for (const int64_t t : bench::token_counts()) {
    for (const Stored& stored : kFlash) {
      add(stored, {t, 32768, 1024});  // wq_b
      add(stored, {t, 4096, 8192});   // wo_b
      add(stored, {t, 2048, 4096});   // gate of the shared expert
      add(stored, {t, 4096, 2048});   // its output
      add(stored, {t, 1024, 4096});   // wq_a; in bf16 a compressor
      add(stored, {t, 512, 4096});    // wkv
    }
    for (const auto& [n, k] : {std::pair{32768, 1024}, {4096, 8192}, {2048, 4096}, {1024, 4096}}) {
      add({"fp8_block to_q8", WeightFormat::kFp8Block, 0, false, true}, {t, n, k});
      add({"k5 to_q8", WeightFormat::kKbit, 5, false, true}, {t, n, k});
    }
    for (const Stored& stored : {kAll[0], kAll[6]}) add(stored, {t, 1024, 4096, 8});  // wo_a
    add(kFlashBf16, {t, 256, 4096});                                                  // router
  }
  for (const int64_t t : {1, 32}) add(kFlashBf16, {t, 129280, 4096});  // logits
  add_kbit();
  return true;
}();

}  // namespace
}  // namespace dsv4
