// moe_hidden.h, with all rows of the experts and with those of a rank.

#include "dsv4/ops/model/moe/moe_hidden.h"

#include "dsv4/base/error.h"
#include "dsv4/comm/shard_id.h"
#if DSV4_CUDA
#include "dsv4/device/device.h"
#endif
#include "dsv4/ops/model/hc_boundary/boundary_inside_test.h"
#include "dsv4/ops/model/moe/moe_case.h"
#include "dsv4/ops/model/moe/moe_output.h"
#include "dsv4/ops/model/moe/random_moe_test.h"
#include "dsv4/ops/parts/experts/halves_case.h"
#include "tests/harness/op_check.h"

namespace dsv4 {
namespace {

using Shape = test::MoeShape;
using Case = test::MoeCase;
using test::StoredAs;

constexpr StoredAs kMxfp4{WeightFormat::kMxfp4}, kFp8{WeightFormat::kFp8Block},
    kKbit4{WeightFormat::kKbit, 4, true}, kKbit5{WeightFormat::kKbit, 5, true};

// The first part of whole; stacks: with the rows of a rank.
MoeHiddenArgs first_part(test::Arena& arena, const Context& context, const MoeArgs& whole,
                         const ExpertStack& routed, const ExpertStack& shared) {
  const int64_t t = whole.x.dim(0), k = whole.experts_per_token;
  const DType act = activation_dtype(context);
  return {.x = whole.x,
          .boundary = whole.boundary,
          .ids = whole.ids,
          .gate = whole.gate,
          .bias = whole.bias,
          .tid2eid = whole.tid2eid,
          .routed = routed,
          .shared = shared,
          .route_scale = whole.route_scale,
          .normalize = whole.normalize,
          .swiglu_limit = whole.swiglu_limit,
          .logits = arena.output(DType::kF32, {t, whole.gate.n}),
          .chosen = arena.output(DType::kI32, {t, k}),
          .hidden = arena.output(act, {t * k, routed.inner()}),
          .shared_hidden = arena.output(act, {t, shared.inner()})};
}

// Calls of one token store its rows of h to the first rows.
MoeHiddenArgs one_token(const MoeHiddenArgs& a, int64_t i) {
  MoeHiddenArgs one = a;
  if (is_given(a.boundary)) one.boundary = test::one_token(a.boundary, i);
  one.x = a.x.slice(0, i, i + 1);
  one.ids = a.ids.slice(0, i, i + 1);
  one.logits = a.logits.slice(0, i, i + 1);
  one.chosen = a.chosen.slice(0, i, i + 1);
  one.hidden = a.hidden.slice(0, 0, a.chosen.dim(1));
  one.shared_hidden = a.shared_hidden.slice(0, i, i + 1);
  return one;
}

// want: by moe_hidden_oracle(), of the file that images were made of. Tolerances as in
// halves_test.cc; the logits add a relative error of about 1e-6 to the weights, and `parts` may
// round a k-bit shared expert to bf16. No two keys of the router are so close that this changes a
// choice.
void check_case(const std::string& name, const Context& context, Case& c, const MoeHiddenArgs& args,
                const MoeHiddenAnswer& want) {
  const bool exact = context.numerics == Numerics::kExact;
  const double cosine = c.shared[0].w1.format == WeightFormat::kKbit ? 5e-5 : 5e-6;
  const auto tolerance = [&](double most) {
    return exact ? test::Tolerance{.ulps = 4, .rel = 8e-6}
                 : test::Tolerance{.rel = 0.02, .cosine = most};
  };
  test::OpCase<MoeHiddenArgs> test{
      .name = name,
      .args = args,
      .outputs = {{"logits", args.logits, want.logits, {.abs = 2e-4, .rel = 1e-5, .cosine = 1e-9}},
                  {"chosen", args.chosen, want.chosen, {.ulps = 0}},
                  {"hidden", args.hidden, want.hidden, tolerance(5e-6)},
                  {"shared_hidden", args.shared_hidden, want.shared_hidden, tolerance(cosine)}},
      .one_token = one_token,
      .num_tokens = args.x.dim(0),
      .after_one_token = test::RowsOfTokens(args.chosen, args.hidden, args.x.dim(0))};
  // `parts` hands its views on, and kernels that read images want aligned rows.
  if (!args.routed.is_image())
    test.strided = [](MoeHiddenArgs& a, test::StridedCopy& copy) {
      copy(a.x), copy(a.hidden), copy(a.shared_hidden);
    };
  check_op(moe_hidden.impls, context, c.arena, test);
}

void check_whole(const Shape& shape, const StoredAs& stored, const StoredAs& shared,
                 Numerics numerics) {
  const Context context{.numerics = numerics};
  Case c;
  fill_case(c, shape, stored, shared, activation_dtype(context));
  const MoeHiddenArgs args = first_part(c.arena, context, c.args, c.routed, c.shared);
  check_case(fmt::format("moe_hidden {} t={} e={} k={} {}", name(stored), shape.t, shape.e, shape.k,
                         name(numerics)),
             context, c, args, moe_hidden_oracle(context, args));
}

void check_few_tokens(const Shape& shape, const StoredAs& shared = kFp8) {
  check_whole(shape, kMxfp4, shared, Numerics::kOfficial);
}

TEST(MoeHidden, AgreesWithOracle) {
  for (const Numerics numerics : {Numerics::kOfficial, Numerics::kExact}) {
    for (const bool hash : {false, true})
      for (const int64_t t : {0, 1, 7})
        check_whole({t, 128, 6, 2, 64, hash}, kMxfp4, kFp8, numerics);
    check_whole({3, 96, 5, 3, 160, false, false}, {WeightFormat::kBF16}, {WeightFormat::kBF16},
                numerics);
  }
}

// For sm90_few: tiles of 8, 16 and 32 tokens and more than one of them; 1 to 8 ranks of a cluster;
// 8 and 12 experts of a lane; k-bit shared experts in tiles of 2 and 8 tokens.
TEST(MoeHidden, FewTokens) {
  for (const int64_t t : {1, 2, 8, 9, 33}) check_few_tokens({t, 384, 20, 6, 64});
  for (const int64_t d : {128, 256, 640, 1408}) check_few_tokens({3, d, 20, 3, 192});
  check_few_tokens({4, 256, 300, 8, 64});
  check_few_tokens({19, 256, 384, 6, 64, true});
  for (const int64_t t : {1, 2, 8, 9}) check_few_tokens({t, 512, 20, 6, 128}, kKbit5);
  check_few_tokens({2, 768, 300, 8, 384}, kKbit4);
  check_few_tokens({2, 4096, 3, 2, 1024});
}

// The rows of all experts that rank r of `world` has.
struct OwnRows {
  ShardId::Rows inner, shared_inner, out;
  std::vector<ExpertWeights> routed, shared;

  OwnRows(const Case& c, int rank, int world) {
    const ShardId id{rank, world};
    inner = id.rows(c.routed[0].w1.n, kFp8BlockSize);
    shared_inner = id.rows(c.shared[0].w1.n, kFp8BlockSize);
    out = id.rows(c.routed[0].w2.n, kFp8BlockSize);
    const auto cut = [this](const ExpertWeights& e, const ShardId::Rows& rows) {
      return ExpertWeights{e.w1.rows(rows.begin, rows.end), e.w3.rows(rows.begin, rows.end),
                           e.w2.rows(out.begin, out.end)};
    };
    for (const ExpertWeights& e : c.routed) routed.push_back(cut(e, inner));
    for (const ExpertWeights& e : c.shared) shared.push_back(cut(e, shared_inner));
  }
};

// A rank of three, whose shared expert has fewer rows than the others'; one without rows of the
// routed experts.
TEST(MoeHidden, RowsOfARank) {
  for (const auto& [inner, rank, world] : {std::tuple{320, 1, 3}, {320, 2, 3}, {128, 0, 2}}) {
    const Context context;
    Case c;
    fill_case(c, {3, 256, 20, 6, inner}, kMxfp4, kFp8, DType::kBF16);
    const OwnRows own(c, rank, world);
    const MoeHiddenArgs args = first_part(c.arena, context, c.args, own.routed, own.shared);
    check_case(fmt::format("moe_hidden of rank {} of {}, i={}", rank, world, inner), context, c,
               args, moe_hidden_oracle(context, args));
  }
}

// Routed experts in kernel images, which only devices read.
TEST(MoeHidden, Images) {
  if (test::gpu_capability().major != 9) GTEST_SKIP() << "kernel images are read on Hopper";
  for (const test::ImageSource& source :
       {test::ImageSource(3), test::ImageSource(WeightFormat::kMxfp4)}) {
    for (const int64_t t : {1, 2, 9, 33}) {
      Case c;
      const MoeArgs file = fill_images(c, {t, 384, 20, 6, 64}, source, source);
      MoeHiddenArgs args = first_part(c.arena, {}, file, file.routed, file.shared);
      const MoeHiddenAnswer want = moe_hidden_oracle({}, args);
      args.routed = c.args.routed;
      check_case(fmt::format("moe_hidden images {} t={}", name(source), t), {}, c, args, want);
    }
  }
}

void check_boundary(int64_t t, int64_t d, const StoredAs& shared) {
  Case c;
  fill_case(c, {t, d, 20, 3, 64}, kMxfp4, shared, DType::kBF16);
  Rng rng(static_cast<uint64_t>(t));
  c.args.boundary = test::random_boundary(c.arena, rng, {.t = t, .d = d});
  c.args.x = c.args.boundary.x;
  const MoeHiddenArgs args = first_part(c.arena, {}, c.args, c.routed, c.shared);
  check_boundary_inside(moe_hidden.impls, Context{}, c.arena,
                        {.name = fmt::format("moe_hidden t={} boundary", t),
                         .args = args,
                         .one_token = one_token,
                         .num_tokens = t,
                         .after_one_token = test::RowsOfTokens(args.chosen, args.hidden, t)});
}

TEST(MoeHidden, BoundaryInside) {
  for (const int64_t t : {2, 6}) check_boundary(t, 1024, kFp8);
  for (const int64_t t : {1, 4, 6}) check_boundary(t, 2048, kKbit5);
}

// What N ranks compute with their rows, and then the second part: the bits of moe.
void check_ranks(const Context& context, Case& c, int world) {
  const int64_t t = c.args.x.dim(0), k = c.args.experts_per_token, d = c.args.x.dim(1);
  const DType act = activation_dtype(context);
  const Buffer acc(DType::kF32, {t, d}), want(DType::kF32, {t, d}), chosen(DType::kI32, {t, k});
  const Buffer logits(DType::kF32, {t, c.args.gate.n});
  const Buffer hidden(act, {t * k, c.routed[0].w1.n}), shared(act, {t, c.shared[0].w1.n});
  MoeArgs whole = c.args;
  whole.acc = want;
  moe(context, whole);
  for (int rank = 0; rank < world; ++rank) {
    const OwnRows own(c, rank, world);
    MoeHiddenArgs args = first_part(c.arena, context, c.args, own.routed, own.shared);
    args.logits = logits, args.chosen = chosen;
    args.hidden = hidden.view().slice(1, own.inner.begin, own.inner.end);
    args.shared_hidden = shared.view().slice(1, own.shared_inner.begin, own.shared_inner.end);
    moe_hidden(context, args);
  }
  for (int rank = 0; rank < world; ++rank) {
    const OwnRows own(c, rank, world);
    moe_output(context, {.hidden = hidden,
                         .shared_hidden = shared,
                         .chosen = chosen,
                         .logits = logits,
                         .routed = own.routed,
                         .shared = own.shared,
                         .acc = acc.view().slice(1, own.out.begin, own.out.end)});
  }
  EXPECT_EQ(
      std::memcmp(acc.view().data, want.view().data, static_cast<size_t>(want.view().bytes())), 0)
      << name(context.numerics) << " " << world << " ranks";
}

TEST(MoeHidden, RanksGiveTheBitsOfMoe) {
  for (const Numerics numerics : {Numerics::kOfficial, Numerics::kExact}) {
    Scratch scratch;
    const Context context{.numerics = numerics, .workspace = &scratch};
    for (const int world : {1, 2, 3}) {
      Case c;
      fill_case(c, {5, 384, 8, 3, 256}, kMxfp4, kFp8, activation_dtype(context));
      check_ranks(context, c, world);
    }
  }
}

#if DSV4_CUDA
// Calls that moe `sm90_few` takes, but for ranks without rows of the shared expert.
TEST(MoeHidden, DryRun) {
  const std::unique_ptr<Device> hopper = Device::dry_run({.name = "H", .major = 9, .num_sms = 132});
  const Context context{.device = hopper.get()};
  for (const int64_t t : {1, 64, 65}) {
    Case c;
    fill_case(c, {t, 384, 20, 6, 64}, kMxfp4, kFp8, DType::kBF16);
    MoeHiddenArgs args = first_part(c.arena, context, c.args, c.routed, c.shared);
    EXPECT_EQ(choose(moe_hidden, context, args).name, t <= 64 ? "sm90_few" : "parts") << t;
    args.shared_hidden = args.shared_hidden.slice(1, 0, 0);
    EXPECT_EQ(choose(moe_hidden, context, args).name, "parts") << t;
  }
}
#endif

TEST(MoeHidden, ReportsErrors) {
  Scratch scratch;
  const Context context{.workspace = &scratch};
  Case c;
  fill_case(c, {2, 32, 4, 2, 32}, {WeightFormat::kBF16}, {WeightFormat::kBF16}, DType::kBF16);
  const MoeHiddenArgs good = first_part(c.arena, context, c.args, c.routed, c.shared);
  const auto message = [&](auto change) {
    MoeHiddenArgs args = good;
    change(args);
    return test::error_of([&] { moe_hidden(context, args); });
  };
  const auto has = [](const std::string& text, const char* part) {
    return text.find(part) != std::string::npos;
  };
  EXPECT_TRUE(has(message([](auto& a) { a.routed = a.routed.file().first(3); }), "and 3 experts"));
  EXPECT_TRUE(has(message([](auto& a) { a.hidden = a.hidden.slice(0, 0, 3); }), "hidden"));
  EXPECT_TRUE(has(message([](auto& a) { a.shared_hidden = a.shared_hidden.slice(0, 0, 1); }),
                  "shared_hidden"));
}

}  // namespace
}  // namespace dsv4
