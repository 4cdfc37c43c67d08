// experts/FORMAT/t with the shapes of V4-Flash (d 4096, inner 2048, 6 of 256 experts; here of 64,
// 860 MB in 4 bits), experts/pro-FORMAT/t with those of V4-Pro (d 7168, inner 3072, of 384).
// experts/kbit_moe-kK/t: as dsv4_kbit_moe() calls it, f32 between products. Each token has random
// experts, different in each call.

#include <set>
#include <vector>

#include "bench/expert_images.h"
#include "bench/op_bench.h"
#include "bench/weight_pool.h"
#include "dsv4/base/error.h"
#include "dsv4/formats/pack_kbit_image.h"
#include "dsv4/ops/parts/experts/experts_case.h"

namespace dsv4 {
namespace {

struct Shape {
  const char* prefix;  // of the format's name
  int64_t d, inner;
};
constexpr Shape kFlash{"", 4096, 2048}, kPro{"pro-", 7168, 3072};
constexpr int64_t kChosen = 6, kExperts = 64;
constexpr int64_t kDraws = 16;  // different choices, used in rotation

struct Case {
  bench::WeightPool pool;
  std::vector<ExpertWeights> table{kExperts};
  bench::Arena arena;
  TensorView ids;  // [kDraws * t, kChosen]
  ExpertsArgs args;
  int64_t call = 0;

  Case(const Shape& s, WeightFormat format, int bits, int64_t t)
      : ids(arena.input(DType::kI32, {kDraws * t, kChosen})) {
    for (ExpertWeights& expert : table) {
      expert = {.w1 = pool.next(format, s.inner, s.d, bits),
                .w3 = pool.next(format, s.inner, s.d, bits),
                .w2 = pool.next(format, s.d, s.inner, bits)};
    }
    Rng rng(1);
    args = test::random_experts(arena, rng, {.t = t, .k = kChosen, .d = s.d, .sigma = 0.01}, table);
    args.swiglu_limit = 10.f;
    test::fill_ints(ids, rng, 0, kExperts);
    next();
  }
  void next() {
    const int64_t t = args.x.dim(0), draw = call++ % kDraws;
    args.experts = ids.slice(0, draw * t, (draw + 1) * t);
  }
};

struct KbitMoeCase : Case {
  Numerics numerics = Numerics::kExact;

  KbitMoeCase(int bits, int64_t t) : Case(kFlash, WeightFormat::kKbit, bits, t) {
    args.may_round_operands = true, args.add = false;
  }
};

// These shapes as kernel images.
struct ImageCase : Case {
  bench::RandomImages random;

  ImageCase(const Shape& s, Codebook book, ImageScale scale, int64_t t)
      : Case(s, WeightFormat::kKbit, book.bits, t), random(kExperts, s.inner, s.d, book, scale) {
    args.stack = random.images;
  }
};

// 1,024 tokens give an expert as many pairs as 4,096 do among the 256 experts of V4-Flash.
void add_images(const Shape& shape, const std::string& name, const Codebook& book,
                ImageScale scale = ImageScale::kE4M4) {
  std::set<int64_t> counts{64, 128, 256, 1024};
  for (const int64_t t : bench::token_counts()) counts.insert(t);
  for (const int64_t t : counts) {
    bench::register_impls<ExpertsArgs>(
        fmt::format("experts/{}{}-image/t:{}", shape.prefix, name, t), experts,
        [=] { return std::make_shared<ImageCase>(shape, book, scale, t); }, Arch::kCuda);
  }
}

void add(const Shape& shape, const char* stored, WeightFormat format, int bits = 0,
         Arch least = Arch::kCpu) {
  std::set<int64_t> counts{4, 64, 512};
  for (const int64_t t : bench::token_counts()) counts.insert(t);
  for (const int64_t t : counts) {
    bench::register_impls<ExpertsArgs>(
        fmt::format("experts/{}{}/t:{}", shape.prefix, stored, t), experts,
        [=] { return std::make_shared<Case>(shape, format, bits, t); }, least);
  }
}

void add_kbit_moe(int bits) {
  for (const int64_t t : {1, 8, 64}) {
    bench::register_impls<ExpertsArgs>(
        fmt::format("experts/kbit_moe-k{}/t:{}", bits, t), experts,
        [=] { return std::make_shared<KbitMoeCase>(bits, t); }, Arch::kCuda);
  }
}

const bool kRegistered = [] {
  add(kFlash, "mxfp4", WeightFormat::kMxfp4);
  add(kFlash, "nvfp4", WeightFormat::kNvfp4);
  add(kFlash, "k2", WeightFormat::kKbit, 2);
  add(kFlash, "k3", WeightFormat::kKbit, 3);
  add(kFlash, "k4", WeightFormat::kKbit, 4);
  add(kFlash, "k5", WeightFormat::kKbit, 5);
  add(kPro, "k2", WeightFormat::kKbit, 2, Arch::kCuda);
  for (const int bits : {2, 3, 4, 5}) add_kbit_moe(bits);
  for (const int bits : {2, 3, 4, 5})
    add_images(kFlash, fmt::format("k{}", bits), nf_codebook(bits));
  for (const int bits : {2, 3, 4}) {
    for (const Shape& shape : {kFlash, kPro})
      add_images(shape, fmt::format("k{}-e4m3", bits), e4m3_codebook(bits));
  }
  add_images(kFlash, "k4-e2m1", e2m1_codebook());
  for (const Shape& shape : {kFlash, kPro}) {
    add_images(shape, "mxfp4", image_codebook({.format = WeightFormat::kMxfp4}),
               ImageScale::kUe8m0);
    add_images(shape, "nvfp4", image_codebook({.format = WeightFormat::kNvfp4}), ImageScale::kE4M3);
  }
  return true;
}();

}  // namespace
}  // namespace dsv4
