// moe/MODEL/FORMAT/t with the shapes of V4-Flash and V4-Pro (6 of 256 or 384 experts; here of 64 or
// 32), a shared expert in FP8, or k5 where FORMAT says so. Each call has other tokens, which choose
// other experts, and another shared expert and gate.
//
// moe_hidden/MODEL/FORMAT/N/t is the first part of it on one rank of N, moe_output/.. the second.

#include "dsv4/ops/model/moe/moe.h"

#include <optional>
#include <set>
#include <vector>

#include "bench/expert_images.h"
#include "bench/op_bench.h"
#include "bench/weight_pool.h"
#include "dsv4/base/error.h"
#include "dsv4/formats/pack_kbit_image.h"
#include "dsv4/ops/model/moe/moe_case.h"
#include "dsv4/ops/model/moe/moe_hidden.h"
#include "dsv4/ops/model/moe/moe_output.h"

namespace dsv4 {
namespace {

struct Shape {
  const char* name;
  int64_t d, inner, experts;
};
constexpr Shape kFlash{"flash", 4096, 2048, 64}, kPro{"pro", 7168, 3072, 32};
constexpr int64_t kChosen = 6;
constexpr int64_t kDraws = 16;  // different tokens, used in rotation
constexpr int64_t kShared = 8;  // different shared experts and gates

ExpertWeights next_expert(bench::WeightPool& pool, const Shape& s, WeightFormat format,
                          int bits = 0) {
  return {.w1 = pool.next(format, s.inner, s.d, bits),
          .w3 = pool.next(format, s.inner, s.d, bits),
          .w2 = pool.next(format, s.d, s.inner, bits)};
}

// Kernel images of the routed experts; without a codebook they are as stored, in MXFP4.
struct Images {
  Codebook book;
  ImageScale scale = ImageScale::kE4M4;

  static Images of(WeightFormat fp4) {
    return {image_codebook({.format = fp4}),
            fp4 == WeightFormat::kMxfp4 ? ImageScale::kUe8m0 : ImageScale::kE4M3};
  }
};

struct Case {
  bench::WeightPool pool;
  std::vector<ExpertWeights> routed;
  std::vector<std::vector<ExpertWeights>> shared;
  std::vector<WeightView> gates;
  std::optional<bench::RandomImages> images;
  bench::Arena arena;
  TensorView x;  // of all draws
  MoeArgs args;
  int64_t call = 0;

  // shared_bits: of a k-bit shared expert; 0: FP8
  Case(const Shape& s, const Images& kind, int shared_bits, int64_t t) {
    for (int64_t i = 0; i < kShared; ++i) {
      shared.push_back({next_expert(
          pool, s, shared_bits > 0 ? WeightFormat::kKbit : WeightFormat::kFp8Block, shared_bits)});
      gates.push_back(pool.next(WeightFormat::kBF16, s.experts, s.d));
    }
    bench::Random random(1);
    // No bias, which would choose equal experts for all tokens.
    args = test::random_moe(
        arena, random,
        {.t = t, .d = s.d, .e = s.experts, .k = kChosen, .sigma = 0.01, .bias_sigma = 0},
        [&] { return gates[0]; });
    args.swiglu_limit = 10.f;
    x = arena.input(DType::kBF16, {kDraws * t, s.d});
    fill_normal(x, random, 0.01);
    if (kind.book.bits > 0) {
      args.routed = images.emplace(s.experts, s.inner, s.d, kind.book, kind.scale).images;
    } else {
      for (int64_t e = 0; e < s.experts; ++e)
        routed.push_back(next_expert(pool, s, WeightFormat::kMxfp4));
      args.routed = routed;
    }
    next();
  }
  void next() {
    const int64_t t = args.acc.dim(0), draw = call % kDraws;
    const auto which = static_cast<size_t>(call++ % kShared);
    args.x = x.slice(0, draw * t, (draw + 1) * t);
    args.shared = shared[which], args.gate = gates[which];
  }
};

// A rank has 1 / ranks of the rows of w1 and w3. w2 is not read.
struct Hidden {
  Case whole;
  bench::Tensor logits, chosen, hidden, shared_hidden;
  MoeHiddenArgs args;

  Hidden(const Shape& s, const Images& kind, int64_t ranks, int64_t t)
      : whole({s.name, s.d, s.inner / ranks, s.experts}, kind, 0, t),
        logits(DType::kF32, {t, s.experts}),
        chosen(DType::kI32, {t, kChosen}),
        hidden(DType::kBF16, {t * kChosen, s.inner / ranks}),
        shared_hidden(DType::kBF16, {t, s.inner / ranks}) {
    args = {.ids = whole.args.ids,
            .bias = whole.args.bias,
            .routed = whole.args.routed,
            .route_scale = whole.args.route_scale,
            .swiglu_limit = whole.args.swiglu_limit,
            .logits = logits,
            .chosen = chosen,
            .hidden = hidden,
            .shared_hidden = shared_hidden};
    next();
  }
  void next() {
    whole.next();
    args.x = whole.args.x, args.shared = whole.args.shared, args.gate = whole.args.gate;
  }
};

void add_hidden(const Shape& shape, const char* format, const Images& kind, Arch least) {
  for (const int64_t ranks : {1, 2, 4}) {
    for (const int64_t t : {1, 8, 64}) {
      bench::register_impls<MoeHiddenArgs>(
          fmt::format("moe_hidden/{}/{}/{}/t:{}", shape.name, format, ranks, t), moe_hidden,
          [=] { return std::make_shared<Hidden>(shape, kind, ranks, t); }, least);
    }
  }
}

// A rank has 1 / ranks of the rows of w2, and all hidden values of the block. w1 and w3 are not
// read.
struct Output {
  Case whole;
  bench::Tensor logits, chosen, hidden, shared_hidden, acc;
  MoeOutputArgs args;

  Output(const Shape& s, const Images& kind, int64_t ranks, int64_t t)
      : whole({s.name, s.d / ranks, s.inner, s.experts}, kind, 0, t),
        logits(DType::kF32, {t, s.experts}),
        chosen(DType::kI32, {t, kChosen}),
        hidden(DType::kBF16, {t * kChosen, s.inner}),
        shared_hidden(DType::kBF16, {t, s.inner}),
        acc(DType::kF32, {t, s.d / ranks}) {
    args = {.hidden = hidden,
            .shared_hidden = shared_hidden,
            .chosen = chosen,
            .logits = logits,
            .ids = whole.args.ids,
            .bias = whole.args.bias,
            .routed = whole.args.routed,
            .acc = acc,
            .first = {.ids_are_complete = false, .logits_are_complete = true}};
    bench::Random random(5);
    fill_normal(logits, random, 1);
    test::fill_ints(chosen, random, 0, s.experts);
    fill_normal(hidden, random, 0.01);
    fill_normal(shared_hidden, random, 0.01);
    next();
  }
  void next() {
    whole.next();
    args.shared = whole.args.shared;
  }
};

void add_output(const Shape& shape, const char* format, const Images& kind, Arch least) {
  for (const int64_t ranks : {2, 4}) {
    for (const int64_t t : {1, 8, 64}) {
      bench::register_impls<MoeOutputArgs>(
          fmt::format("moe_output/{}/{}/{}/t:{}", shape.name, format, ranks, t), moe_output,
          [=] { return std::make_shared<Output>(shape, kind, ranks, t); }, least);
    }
  }
}

void add(const Shape& shape, const char* format, const Images& kind, Arch least,
         int shared_bits = 0) {
  std::set<int64_t> counts{2, 4, 8, 16, 64};
  for (const int64_t t : bench::token_counts()) counts.insert(t);
  for (const int64_t t : counts) {
    bench::register_impls<MoeArgs>(
        fmt::format("moe/{}/{}/t:{}", shape.name, format, t), moe,
        [=] { return std::make_shared<Case>(shape, kind, shared_bits, t); }, least);
  }
}

const bool kRegistered = [] {
  const Images k3{e4m3_codebook(3)};
  add(kFlash, "mxfp4", {}, Arch::kCpu);
  add(kFlash, "k3-image", k3, Arch::kCuda);
  add(kFlash, "mxfp4-image", Images::of(WeightFormat::kMxfp4), Arch::kCuda);
  add(kFlash, "nvfp4-image", Images::of(WeightFormat::kNvfp4), Arch::kCuda);
  add(kFlash, "k3-image shared-k5", k3, Arch::kCuda, 5);
  add(kPro, "k3-image", k3, Arch::kCuda);
  add_hidden(kFlash, "mxfp4", {}, Arch::kCpu);
  add_hidden(kFlash, "mxfp4-image", Images::of(WeightFormat::kMxfp4), Arch::kCuda);
  add_output(kFlash, "mxfp4-image", Images::of(WeightFormat::kMxfp4), Arch::kCuda);
  return true;
}();

}  // namespace
}  // namespace dsv4
