// experts/FORMAT/t with the shapes of V4-Flash (d 4096, inner 2048, 6 of 256 experts; here of 64,
// 860 MB in 4 bits), experts/pro-FORMAT/t with those of V4-Pro (d 7168, inner 3072, of 384).
// experts/kbit_moe-kK/t: as dsv4_kbit_moe() calls it, f32 between products; and -images, of weights
// that are kernel images, with all experts of a model. Each token has random experts, different in
// each call.

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

// All experts of a model, a kernel image of each matrix, as dsv4_kbit_moe() calls it.
struct Model {
  const char* name;
  int64_t d, inner, experts, chosen;
};
constexpr Model kModels[] = {{"flash", 4096, 2048, 256, 6}, {"qwen3-next", 2048, 512, 512, 10}};

struct MatrixImagesCase {
  Numerics numerics = Numerics::kExact;
  std::vector<bench::Tensor> bytes;  // of w1, w3 and w2: [experts, image]
  std::vector<ExpertWeights> table;
  bench::Arena arena;
  TensorView ids;  // [kDraws * t, chosen]
  ExpertsArgs args;
  int64_t call = 0;

  MatrixImagesCase(const Model& m, int bits, int64_t t)
      : table(static_cast<size_t>(m.experts)),
        ids(arena.input(DType::kI32, {kDraws * t, m.chosen})) {
    const auto images = [&](WeightView ExpertWeights::*member, int64_t n, int64_t k) {
      const WeightView w{
          .format = WeightFormat::kKbit, .n = n, .k = k, .bits = bits, .e4m3_codebook = true};
      const TensorView all = bytes.emplace_back(
          DType::kU8, std::initializer_list<int64_t>{m.experts, image_of_format(w).bytes()});
      bench::fill_moderate(all);
      for (size_t e = 0; e < table.size(); ++e) {
        table[e].*member = w;
        (table[e].*member).data = all.slice(0, static_cast<int64_t>(e), static_cast<int64_t>(e) + 1)
                                      .reshape({image_of_format(w).bytes()});
      }
    };
    images(&ExpertWeights::w1, m.inner, m.d), images(&ExpertWeights::w3, m.inner, m.d);
    images(&ExpertWeights::w2, m.d, m.inner);
    Rng rng(1);
    args = test::random_experts(arena, rng, {.t = t, .k = m.chosen, .d = m.d, .sigma = 0.01},
                                ExpertStack(table, WeightLayout::kMatrixImages));
    args.may_round_operands = true, args.add = false;
    test::fill_ints(ids, rng, 0, m.experts);
    next();
  }
  void next() {
    const int64_t t = args.x.dim(0), draw = call++ % kDraws;
    args.experts = ids.slice(0, draw * t, (draw + 1) * t);
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

void add_matrix_images(const Model& model, int bits) {
  for (const int64_t t : {1, 8, 16, 64, 256, 1024}) {
    bench::register_impls<ExpertsArgs>(
        fmt::format("experts/kbit_moe-k{}-images {}/t:{}", bits, model.name, t), experts,
        [=] { return std::make_shared<MatrixImagesCase>(model, bits, t); }, Arch::kCuda);
  }
}

const bool kRegistered = [] {
  for (const Model& model : kModels)
    for (const int bits : {2, 3, 4}) add_matrix_images(model, bits);
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
