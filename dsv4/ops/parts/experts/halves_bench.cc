// experts_hidden/FORMAT/N/t and experts_output/FORMAT/N/t: one rank of N, with the shapes of
// V4-Flash (d 4096, inner 2048, 6 of 64 experts), as files have them and as kernel images. 1,024
// tokens give an expert as many pairs as 4,096 do among the 256 experts of V4-Flash.

#include <vector>

#include "bench/expert_images.h"
#include "bench/op_bench.h"
#include "bench/weight_pool.h"
#include "dsv4/base/error.h"
#include "dsv4/base/rng.h"
#include "dsv4/formats/pack_kbit_image.h"
#include "dsv4/ops/parts/experts/halves_case.h"

namespace dsv4 {
namespace {

constexpr int64_t kModel = 4096, kInner = 2048, kChosen = 6, kExperts = 64;

struct Case {
  bench::WeightPool pool;
  std::vector<ExpertWeights> table{kExperts};
  bench::Arena arena;

  Case(int64_t ranks) {
    for (ExpertWeights& expert : table) {
      expert = {.w1 = pool.next(WeightFormat::kMxfp4, kInner / ranks, kModel),
                .w3 = pool.next(WeightFormat::kMxfp4, kInner / ranks, kModel),
                .w2 = pool.next(WeightFormat::kMxfp4, kModel / ranks, kInner)};
    }
  }
  TensorView ids(int64_t t, Rng& rng) {
    const TensorView view = arena.input(DType::kI32, {t, kChosen});
    test::fill_ints(view, rng, 0, kExperts);
    return view;
  }
  void next() {}
};

struct Hidden : Case {
  ExpertsHiddenArgs args;
  Hidden(int64_t ranks, int64_t t) : Case(ranks) {
    Rng rng(1);
    const TensorView x = arena.input(DType::kBF16, {t, kModel});
    const TensorView weights = arena.input(DType::kF32, {t, kChosen});
    test::fill_normal(x, rng, 0.01);
    test::fill_uniform(weights, rng, 0.05, 0.6);
    args = {.x = x,
            .stack = table,
            .experts = ids(t, rng),
            .weights = weights,
            .swiglu_limit = 10.f,
            .hidden = arena.output(DType::kBF16, {t * kChosen, kInner / ranks})};
  }
};

struct Output : Case {
  ExpertsOutputArgs args;
  Output(int64_t ranks, int64_t t) : Case(ranks) {
    Rng rng(1);
    const TensorView hidden = arena.input(DType::kBF16, {t * kChosen, kInner});
    test::fill_normal(hidden, rng, 0.01);
    args = {.hidden = hidden,
            .stack = table,
            .experts = ids(t, rng),
            .acc = arena.inout(DType::kF32, {t, kModel / ranks})};
  }
};

// A half as kernel images: the rows that a rank has of the product that the half computes.
template <class Half>
struct Images : Half {
  bench::RandomImages random;

  Images(int64_t ranks, int64_t t)
      : Half(ranks, t),
        random(kExperts, std::is_same_v<Half, Hidden> ? kInner / ranks : kInner,
               std::is_same_v<Half, Hidden> ? kModel : kModel / ranks,
               image_codebook({.format = WeightFormat::kMxfp4}), ImageScale::kUe8m0) {
    this->args.stack = random.images;
  }
};

void add_images(int64_t ranks, int64_t t) {
  bench::register_impls<ExpertsHiddenArgs>(
      fmt::format("experts_hidden/mxfp4-image/{}/t:{}", ranks, t), experts_hidden,
      [=] { return std::make_shared<Images<Hidden>>(ranks, t); }, Arch::kCuda);
  bench::register_impls<ExpertsOutputArgs>(
      fmt::format("experts_output/mxfp4-image/{}/t:{}", ranks, t), experts_output,
      [=] { return std::make_shared<Images<Output>>(ranks, t); }, Arch::kCuda);
}

const bool kRegistered = [] {
  for (const int64_t ranks : {1, 2, 4})
    for (const int64_t t : {1, 8, 64, 128, 1024}) add_images(ranks, t);
  for (const int64_t ranks : {1, 2, 4}) {
    for (const int64_t t : {1, 8, 64}) {
      bench::register_impls<ExpertsHiddenArgs>(
          fmt::format("experts_hidden/mxfp4/{}/t:{}", ranks, t), experts_hidden,
          [=] { return std::make_shared<Hidden>(ranks, t); });
      bench::register_impls<ExpertsOutputArgs>(
          fmt::format("experts_output/mxfp4/{}/t:{}", ranks, t), experts_output,
          [=] { return std::make_shared<Output>(ranks, t); });
    }
  }
  return true;
}();

}  // namespace
}  // namespace dsv4
