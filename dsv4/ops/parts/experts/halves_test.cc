#include "dsv4/ops/parts/experts/halves.h"

#include "dsv4/base/error.h"
#include "dsv4/comm/shard_id.h"
#if DSV4_CUDA
#include "dsv4/device/device.h"
#endif
#include "dsv4/ops/parts/experts/halves_case.h"
#include "dsv4/ops/parts/experts/images_case_test.h"
#include "tests/harness/mirrored.h"
#include "tests/harness/op_check.h"
#include "tests/harness/weights.h"

namespace dsv4 {
namespace {

using test::Arena;

struct Shape {
  int64_t t, k, e, d, inner;
  bool ids = true;  // false: a shared expert
};

struct Case {
  Arena arena;
  std::vector<ExpertWeights> table;
  ExpertsArgs args;

  Case(const Shape& s, const test::StoredAs& stored, DType x, bool coarse) {
    Rng rng(static_cast<uint64_t>(s.t * 7919 + s.d + s.inner));
    const auto w1 = test::random_stack(arena, rng, stored, s.e, s.inner, s.d);
    const auto w3 = test::random_stack(arena, rng, stored, s.e, s.inner, s.d);
    const auto w2 = test::random_stack(arena, rng, stored, s.e, s.d, s.inner);
    for (size_t i = 0; i < w1.size(); ++i) table.push_back({.w1 = w1[i], .w3 = w3[i], .w2 = w2[i]});
    args = test::random_experts(arena, rng, {.t = s.t, .k = s.k, .d = s.d, .x = x}, table);
    if (!s.ids) args.experts = {}, args.weights = {};
    for (const ExpertWeights& expert : table) {
      for (const WeightView& w : {expert.w1, expert.w3, expert.w2})
        if (coarse && w.format == WeightFormat::kKbit) test::coarsen(w.codebook);
    }
  }
};

// Calls of one token store its rows of h to the first rows.
ExpertsHiddenArgs one_token(const ExpertsHiddenArgs& a, int64_t i) {
  ExpertsHiddenArgs one = a;
  one.x = a.x.slice(0, i, i + 1);
  if (!a.experts.empty()) one.experts = a.experts.slice(0, i, i + 1);
  if (!a.weights.empty()) one.weights = a.weights.slice(0, i, i + 1);
  one.hidden = a.hidden.slice(0, 0, a.hidden.dim(0) / a.x.dim(0));
  return one;
}

// want: by experts_hidden_oracle(), of the file that images were made of.
void check_hidden(const std::string& name, const Context& context, Arena& arena,
                  const ExpertsHiddenArgs& args, const std::vector<double>& want,
                  const test::Tolerance& tolerance) {
  test::OpCase<ExpertsHiddenArgs> test{
      .name = "hidden " + name,
      .args = args,
      .outputs = {{"hidden", args.hidden, want, tolerance}},
      .one_token = one_token,
      .num_tokens = args.x.dim(0),
      .after_one_token = test::RowsOfTokens(args.experts, args.hidden, args.x.dim(0))};
  test.strided = [](ExpertsHiddenArgs& a, test::StridedCopy& copy) {
    copy(a.x), copy(a.experts), copy(a.weights), copy(a.hidden);
  };
  check_op(experts_hidden.impls, context, arena, test);
}

// Likewise.
void check_output(const std::string& name, const Context& context, Arena& arena,
                  const ExpertsOutputArgs& args, const std::vector<double>& want,
                  const test::Tolerance& tolerance) {
  const int64_t t = args.tokens(), k = args.experts.empty() ? 1 : args.experts.dim(1);
  const TensorView by_token =
      arena.input(args.hidden.dtype, {args.hidden.dim(0), args.hidden.dim(1)});
  const std::vector<int64_t> rows = test::rows_of_tokens(args.experts, t);
  for (size_t j = 0; j < rows.size(); ++j)
    test::copy_row(args.hidden, rows[j], by_token, static_cast<int64_t>(j));
  test::OpCase<ExpertsOutputArgs> test{.name = "output " + name,
                                       .args = args,
                                       .outputs = {{"acc", args.out(), want, tolerance}},
                                       .one_token =
                                           [=](const ExpertsOutputArgs& a, int64_t i) {
                                             ExpertsOutputArgs one = a;
                                             one.hidden = by_token.slice(0, i * k, (i + 1) * k);
                                             if (!a.experts.empty())
                                               one.experts = a.experts.slice(0, i, i + 1);
                                             if (!a.addend.empty())
                                               one.addend = a.addend.slice(0, i, i + 1);
                                             if (a.rows.empty())
                                               one.acc = a.acc.slice(0, i, i + 1);
                                             else
                                               one.rows = a.rows.slice(0, i * k, (i + 1) * k);
                                             return one;
                                           },
                                       .num_tokens = t};
  test.strided = [](ExpertsOutputArgs& a, test::StridedCopy& copy) {
    copy(a.hidden), copy(a.experts), copy(a.addend), copy(a.acc), copy(a.rows);
  };
  check_op(experts_output.impls, context, arena, test);
}

// Instead of a sum.
ExpertsOutputArgs with_rows(Arena& arena, const Context& context, ExpertsOutputArgs args) {
  args.rows = arena.output(activation_dtype(context), {args.hidden.dim(0), args.acc.dim(1)});
  args.acc = {}, args.addend = {};
  return args;
}

TensorView random_hidden(Arena& arena, const Context& context, const ExpertsArgs& whole) {
  const TensorView hidden =
      arena.input(activation_dtype(context), {whole.x.dim(0) * slots(whole), whole.stack.inner()});
  Rng rng(12);
  test::fill_normal(hidden, rng);
  return hidden;
}

// What is added after all experts.
ConstTensorView random_addend(Arena& arena, DType dtype, const ConstTensorView& acc) {
  const TensorView addend = arena.input(dtype, {acc.dim(0), acc.dim(1)});
  Rng rng(13);
  test::fill_normal(addend, rng);
  return addend;
}

std::string text(const Shape& shape, const test::StoredAs& stored, Numerics numerics) {
  return fmt::format("{} {} t={} i={}", name(stored), name(numerics), shape.t, shape.inner);
}

void check_first(const Shape& shape, const test::StoredAs& stored, DType x, Numerics numerics,
                 const test::Tolerance& tolerance) {
  const Context context{.numerics = numerics};
  Case c(shape, stored, x, numerics == Numerics::kOfficial);
  const ExpertsHiddenArgs args = test::first_half(c.arena, context, c.args);
  check_hidden(text(shape, stored, numerics), context, c.arena, args,
               experts_hidden_oracle(context, args), tolerance);
}

void check_second(const Shape& shape, const test::StoredAs& stored, Numerics numerics, bool add,
                  const test::Tolerance& tolerance) {
  const Context context{.numerics = numerics};
  Case c(shape, stored, DType::kBF16, numerics == Numerics::kOfficial);
  c.args.add = add;
  ExpertsOutputArgs args = test::second_half(random_hidden(c.arena, context, c.args), c.args);
  if (add) args.addend = random_addend(c.arena, activation_dtype(context), args.acc);
  check_output(text(shape, stored, numerics), context, c.arena, args,
               experts_output_oracle(context, args), tolerance);
}

constexpr Shape kShapes[] = {{0, 2, 3, 64, 32},
                             {1, 6, 8, 96, 160},
                             {9, 3, 4, 288, 64},
                             {5, 1, 1, 96, 160, false},
                             {300, 2, 3, 64, 32}};  // more than one chunk

void check_rows(const Shape& shape, const test::StoredAs& stored, Numerics numerics,
                const test::Tolerance& tolerance) {
  const Context context{.numerics = numerics};
  Case c(shape, stored, DType::kBF16, numerics == Numerics::kOfficial);
  const ExpertsOutputArgs args = with_rows(
      c.arena, context, test::second_half(random_hidden(c.arena, context, c.args), c.args));
  check_output("rows " + text(shape, stored, numerics), context, c.arena, args,
               experts_output_oracle(context, args), tolerance);
}

// Tolerances as in experts_test.cc, for one product of the two.
TEST(ExpertsHalves, AgreeWithOracle) {
  const test::Tolerance exact{.ulps = 4, .rel = 4e-6}, official{.rel = 0.02, .cosine = 5e-6};
  for (const test::StoredAs& stored : test::kAllStored) {
    for (const Shape& s : kShapes) {
      if (s.t > 9 && stored.format != WeightFormat::kMxfp4) continue;
      check_first(s, stored, DType::kF32, Numerics::kExact, exact);
      check_first(s, stored, DType::kBF16, Numerics::kOfficial, official);
      check_second(s, stored, Numerics::kExact, true, exact);
      check_second(s, stored, Numerics::kOfficial, false, official);
      check_second(s, stored, Numerics::kOfficial, true, official);
      if (!s.ids) continue;
      check_rows(s, stored, Numerics::kExact, exact);
      check_rows(s, stored, Numerics::kOfficial, official);
    }
  }
}

void check_sum(int64_t t, int64_t k, int64_t e, int64_t n, DType rows_dtype, bool add) {
  Arena arena;
  Rng rng(static_cast<uint64_t>(100 * t + n));
  const TensorView rows = arena.input(rows_dtype, {t * k, n}),
                   ids = arena.input(DType::kI32, {t, k});
  test::fill_normal(rows, rng);
  for (int64_t i = 0; i < t * k; ++i) ids.as<int32_t>()[i] = static_cast<int32_t>(rng.below(e));
  const TensorView acc = add ? arena.inout(DType::kF32, {t, n}) : arena.output(DType::kF32, {t, n});
  ExpertsSumArgs args{.rows = rows, .experts = ids, .num_experts = e, .acc = acc, .add = add};
  if (add) {
    test::fill_normal(acc, rng);
    args.addend = random_addend(arena, rows_dtype, acc);
  }
  test::OpCase<ExpertsSumArgs> test{
      .name = fmt::format("sum t={} k={} n={}", t, k, n),
      .args = args,
      .outputs = {{"acc", acc, experts_sum_oracle(args), {.ulps = 4, .rel = 4e-6}}},
      .one_token =
          [=](const ExpertsSumArgs& a, int64_t i) {
            ExpertsSumArgs one = a;
            one.rows = a.rows.slice(0, i * k, (i + 1) * k);
            one.experts = a.experts.slice(0, i, i + 1);
            if (!a.addend.empty()) one.addend = a.addend.slice(0, i, i + 1);
            one.acc = a.acc.slice(0, i, i + 1);
            return one;
          },
      .num_tokens = t};
  test.strided = [](ExpertsSumArgs& a, test::StridedCopy& copy) {
    copy(a.rows), copy(a.experts), copy(a.addend), copy(a.acc);
  };
  check_op(experts_sum.impls, {}, arena, test);
}

TEST(ExpertsHalves, SumAgreesWithOracle) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    check_sum(0, 2, 3, 64, dtype, false);
    check_sum(1, 6, 256, 4096, dtype, false);
    check_sum(9, 3, 4, 77, dtype, true);
    check_sum(300, 2, 5, 300, dtype, true);
  }
}

// Kernel images, which only devices read. The oracle reads the file that they were made of.
void check_images(test::ImagesCase& c, const std::string& name) {
  const Context context;
  const test::Tolerance tolerance{.rel = 0.02, .cosine = 5e-6};
  ExpertsHiddenArgs first = test::first_half(c.arena, context, c.file_args);
  const std::vector<double> want_hidden = experts_hidden_oracle(context, first);
  first.stack = c.args.stack;
  check_hidden(name, context, c.arena, first, want_hidden, tolerance);
  ExpertsOutputArgs second =
      test::second_half(random_hidden(c.arena, context, c.file_args), c.file_args);
  second.addend = random_addend(c.arena, DType::kBF16, second.acc);
  const std::vector<double> want_acc = experts_output_oracle(context, second);
  ExpertsOutputArgs rows = with_rows(c.arena, context, second);
  const std::vector<double> want_rows = experts_output_oracle(context, rows);
  second.stack = rows.stack = c.args.stack;
  check_output(name, context, c.arena, second, want_acc, tolerance);
  check_output("rows " + name, context, c.arena, rows, want_rows, tolerance);
}

TEST(ExpertsHalves, ImagesAgreeWithOracle) {
  if (test::gpu() == nullptr) GTEST_SKIP() << "kernel images are read on a GPU";
  for (const test::ImageSource& source :
       {test::ImageSource(2), test::ImageSource(3), test::ImageSource(4), test::ImageSource(5),
        test::ImageSource(WeightFormat::kMxfp4), test::ImageSource(WeightFormat::kNvfp4)}) {
    for (const test::ImagesShape& s :
         {test::ImagesShape{.t = 0, .k = 2, .e = 3, .d = 64, .inner = 32},
          {.t = 1, .k = 6, .e = 40, .d = 256, .inner = 128},
          {.t = 7, .k = 3, .e = 9, .d = 288, .inner = 544},
          {.t = 33, .k = 6, .e = 256, .d = 96, .inner = 64},
          {.t = 150, .k = 2, .e = 3, .d = 288, .inner = 512}}) {  // many pairs for each expert
      test::ImagesCase c(s, source, source);
      check_images(c, fmt::format("images {} t={} d={} i={}", name(source), s.t, s.d, s.inner));
    }
  }
  test::ImagesCase pro({.t = 3, .k = 2, .e = 4, .d = 7168, .inner = 3072}, 2, 2);
  check_images(pro, "images of V4-Pro's width");
}

#if DSV4_CUDA
// Prompts, where no bit may depend on the batch, and a few tokens.
TEST(ExpertsHalves, DryRunWithImages) {
  const std::unique_ptr<Device> hopper = Device::dry_run({.name = "H", .major = 9, .num_sms = 132});
  const auto expect_choice = [&](int64_t t, const test::ImageSource& source, bool invariant,
                                 std::string_view name, const test::ImageSource* down = nullptr) {
    const Context context{.need_batch_invariant = invariant, .device = hopper.get()};
    test::ImagesCase c({.t = t, .k = 2, .e = 3, .d = 512, .inner = 512}, source,
                       down == nullptr ? source : *down);
    const ExpertsHiddenArgs first = test::first_half(c.arena, context, c.args);
    EXPECT_EQ(choose(experts_hidden, context, first).name, name) << t;
    const ExpertsOutputArgs second = test::second_half(first.hidden, c.args);
    EXPECT_EQ(choose(experts_output, context, second).name, name) << t;
    EXPECT_GT(workspace_bytes(experts_hidden, context, first), 0);
    EXPECT_GT(workspace_bytes(experts_output, context, second), 0);
  };
  for (const int64_t t : {1, 12}) expect_choice(t, WeightFormat::kMxfp4, false, "sm90_few_e4m3");
  expect_choice(13, WeightFormat::kMxfp4, false, "sm90_grouped_e4m3");
  expect_choice(13, WeightFormat::kNvfp4, false, "sm90_grouped");
  expect_choice(13, WeightFormat::kMxfp4, true, "sm90_many_e4m3");
  expect_choice(13, WeightFormat::kNvfp4, true, "sm90_few_e4m3");
  for (const bool invariant : {false, true}) expect_choice(13, 3, invariant, "sm90_many_e4m3");
  expect_choice(25, 3, false, "sm90_grouped");
  expect_choice(25, 3, true, "sm90_many_e4m3");
  // Both codebooks decide, as in the kernels for few pairs.
  const test::ImageSource five(5);
  for (const int64_t t : {1, 13}) expect_choice(t, 3, true, "sm90_few", &five);
}
#endif

// Kernels for few pairs and for many: equal bits, whatever the step.
TEST(Experts, ManyPairsHaveTheBitsOfFew) {
  if (test::gpu_capability().major != 9) GTEST_SKIP() << "for Hopper";
  for (const test::ImageSource& source :
       {test::ImageSource(2), test::ImageSource(3), test::ImageSource(4),
        test::ImageSource(WeightFormat::kMxfp4)}) {
    for (const test::ImagesShape& s :
         {test::ImagesShape{.t = 130, .k = 2, .e = 5, .d = 4096, .inner = 2048},
          {.t = 21, .k = 1, .e = 3, .d = 7168, .inner = 3072},
          {.t = 65, .k = 1, .e = 4, .d = 544, .inner = 352, .only = 2}}) {
      test::ImagesCase c(s, source, source);
      const auto bits_of = [&](std::string_view impl) {
        c.arena.prepare();
        experts({.force_impl = impl, .device = test::gpu()}, c.args);
        test::wait(*test::gpu());
        return c.arena.written();
      };
      c.arena.freeze();
      const bool wide = s.d > 4096;
      EXPECT_TRUE(bits_of("sm90_many_e4m3") == bits_of(wide ? "sm90_wide" : "sm90_few_e4m3"))
          << name(source) << " d=" << s.d;
    }
  }
}

// What N ranks compute, each with its rows, side by side: the bits of experts, routed and shared.
TEST(ExpertsHalves, SlicesGiveTheBitsOfExperts) {
  for (const test::StoredAs& stored : test::kAllStored) {
    for (const Numerics numerics : {Numerics::kOfficial, Numerics::kExact}) {
      for (const Shape& shape : {Shape{7, 3, 4, 384, 256}, Shape{4, 1, 1, 256, 512, false}}) {
        const Context context{.numerics = numerics};
        Case c(shape, stored, DType::kBF16, false);
        const auto run_whole = [&] {
          Buffer acc(DType::kF32, {shape.t, shape.d});
          ExpertsArgs args = c.args;
          args.acc = acc;
          experts(context, args);
          return acc;
        };
        const Buffer want = run_whole();
        for (const int world : {1, 2, 3, 5}) {
          const int64_t k = shape.ids ? shape.k : 1;
          const Buffer hidden(activation_dtype(context), {shape.t * k, shape.inner});
          const Buffer acc(DType::kF32, {shape.t, shape.d});
          const auto for_each_rank = [&](const auto& use) {
            for (int rank = 0; rank < world; ++rank) {
              const auto inner = ShardId{rank, world}.rows(shape.inner, kFp8BlockSize),
                         out = ShardId{rank, world}.rows(shape.d, kFp8BlockSize);
              std::vector<ExpertWeights> own;
              for (const ExpertWeights& e : c.table)
                own.push_back({e.w1.rows(inner.begin, inner.end), e.w3.rows(inner.begin, inner.end),
                               e.w2.rows(out.begin, out.end)});
              use(own, inner, out);
            }
          };
          for_each_rank([&](const auto& own, const auto& inner, const auto&) {
            experts_hidden(context, {.x = c.args.x,
                                     .stack = own,
                                     .experts = c.args.experts,
                                     .weights = c.args.weights,
                                     .swiglu_limit = c.args.swiglu_limit,
                                     .hidden = hidden.view().slice(1, inner.begin, inner.end)});
          });
          for_each_rank([&](const auto& own, const auto&, const auto& out) {
            experts_output(context, {.hidden = hidden,
                                     .stack = own,
                                     .experts = c.args.experts,
                                     .acc = acc.view().slice(1, out.begin, out.end)});
          });
          EXPECT_EQ(std::memcmp(acc.view().data, want.view().data,
                                static_cast<size_t>(want.view().bytes())),
                    0)
              << name(stored) << " " << name(numerics) << " " << world << " ranks";
        }
      }
    }
  }
}

void fill_nan(const Buffer& buffer) {
  std::memset(const_cast<std::byte*>(buffer.view().data), 0xff,
              static_cast<size_t>(buffer.view().bytes()));
}

// What N ranks with whole experts compute and exchange: the bits of experts. A rank may have none.
void check_whole_experts(const Context& context, const Case& c, const Shape& shape, int world,
                         const Buffer& want) {
  const DType act = activation_dtype(context);
  const Buffer all(act, {shape.t * shape.k, shape.d}), acc(DType::kF32, {shape.t, shape.d});
  for (int rank = 0; rank < world; ++rank) {
    const auto [begin, end] = ShardId{rank, world}.rows(shape.e, 1);
    if (begin == end) continue;
    const std::span<const ExpertWeights> own =
        std::span(c.table).subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin));
    const ExpertStack stack = ExpertStack(own).part_of(shape.e, begin);
    const Buffer hidden(act, {shape.t * shape.k, shape.inner});
    const Buffer rows(act, {shape.t * shape.k, shape.d});
    fill_nan(hidden), fill_nan(rows);
    experts_hidden(context, {.x = c.args.x,
                             .stack = stack,
                             .experts = c.args.experts,
                             .weights = c.args.weights,
                             .swiglu_limit = c.args.swiglu_limit,
                             .hidden = hidden});
    experts_output(context,
                   {.hidden = hidden, .stack = stack, .experts = c.args.experts, .rows = rows});
    for (int64_t i = 0; i < shape.t * shape.k; ++i)
      if (stack.has_id(c.args.experts.row<int32_t>(i / shape.k)[i % shape.k]))
        test::copy_row(rows.view(), i, all, i);
  }
  experts_sum(
      context,
      {.rows = all, .experts = c.args.experts, .num_experts = shape.e, .acc = acc, .add = false});
  EXPECT_EQ(
      std::memcmp(acc.view().data, want.view().data, static_cast<size_t>(want.view().bytes())), 0)
      << world << " ranks";
}

TEST(ExpertsHalves, WholeExpertsGiveTheBitsOfExperts) {
  for (const test::StoredAs& stored : test::kAllStored) {
    for (const Numerics numerics : {Numerics::kOfficial, Numerics::kExact}) {
      for (const Shape& shape : {Shape{7, 3, 5, 384, 256}, Shape{300, 2, 3, 64, 32}}) {
        SCOPED_TRACE(text(shape, stored, numerics));
        const Context context{.numerics = numerics};
        Case c(shape, stored, DType::kBF16, false);
        const Buffer want(DType::kF32, {shape.t, shape.d});
        ExpertsArgs args = c.args;
        args.acc = want, args.add = false;
        experts(context, args);
        for (const int world : {1, 2, 3, 5, 7}) check_whole_experts(context, c, shape, world, want);
      }
    }
  }
}

// Rows of h, of experts as stored, in images, and of the only one; and sums.
TEST(ExpertsHalves, StoreValuesOnOtherRanks) {
  if (test::gpu() == nullptr) GTEST_SKIP() << "no GPU";
  {
    Case c({9, 3, 5, 384, 256}, {WeightFormat::kMxfp4}, DType::kBF16, false);
    const ExpertsHiddenArgs args = test::first_half(c.arena, {}, c.args);
    EXPECT_EQ(test::check_mirrors(experts_hidden, {}, c.arena, args, {&ExpertsHiddenArgs::hidden}),
              1);
    const ExpertsSumArgs sum{.rows = random_hidden(c.arena, {}, c.args),
                             .experts = c.args.experts,
                             .num_experts = 5,
                             .acc = c.arena.output(DType::kF32, {9, 256}),
                             .add = false};
    EXPECT_EQ(test::check_mirrors(experts_sum, {}, c.arena, sum, {&ExpertsSumArgs::acc}), 1);
  }
  {
    Case c({9, 1, 1, 384, 256, false}, {WeightFormat::kFp8Block}, DType::kBF16, false);
    ExpertsHiddenArgs args = test::first_half(c.arena, {}, c.args);
    args.experts = {}, args.weights = {};
    EXPECT_EQ(test::check_mirrors(experts_hidden, {}, c.arena, args, {&ExpertsHiddenArgs::hidden}),
              1);
  }
  if (test::gpu_capability().major != 9) return;
  for (const test::ImageSource& source :
       {test::ImageSource(3), test::ImageSource(WeightFormat::kMxfp4)}) {
    test::ImagesCase c({.t = 70, .k = 3, .e = 4, .d = 512, .inner = 256}, source, source);
    const ExpertsHiddenArgs args = test::first_half(c.arena, {}, c.args);
    EXPECT_GE(test::check_mirrors(experts_hidden, {}, c.arena, args, {&ExpertsHiddenArgs::hidden}),
              2);
  }
}

TEST(ExpertsHalves, AStackThatIsPartOfALayerIsNotSummed) {
  Case c({2, 2, 4, 64, 32}, {WeightFormat::kMxfp4}, DType::kBF16, false);
  const ExpertStack part = ExpertStack(c.table).part_of(8, 4);
  EXPECT_EQ(part.num_ids(), 8);
  EXPECT_TRUE(part.has_id(4) && part.has_id(7) && !part.has_id(3) && !part.has_id(8));
  ExpertsArgs whole = c.args;
  whole.stack = part;
  EXPECT_THROW(experts({}, whole), Error);
  ExpertsOutputArgs output =
      test::second_half(test::first_half(c.arena, {}, c.args).hidden, c.args);
  output.stack = part;
  EXPECT_THROW(experts_output({}, output), Error);
  output.rows = c.arena.output(DType::kBF16, {4, 64});
  EXPECT_THROW(experts_output({}, output), Error) << "rows and a sum";
}

TEST(ExpertsHalves, BadArgumentsAreErrors) {
  Case c({2, 2, 3, 64, 32}, {WeightFormat::kMxfp4}, DType::kBF16, false);
  ExpertsHiddenArgs hidden = test::first_half(c.arena, {}, c.args);
  ExpertsOutputArgs output = test::second_half(hidden.hidden, c.args);
  const Buffer ids(DType::kI32, {2, 2});
  ids.as<int32_t>()[3] = 3;
  hidden.experts = output.experts = ids;
  EXPECT_THROW(experts_hidden({}, hidden), Error) << "an id outside of the stack";
  EXPECT_THROW(experts_output({}, output), Error);
  hidden = test::first_half(c.arena, {}, c.args);
  hidden.hidden = hidden.hidden.slice(0, 0, 3);
  EXPECT_THROW(experts_hidden({}, hidden), Error) << "rows for three of four pairs";
  output.experts = c.args.experts;
  output.acc = output.acc.slice(1, 0, 63);
  EXPECT_THROW(experts_output({}, output), Error) << "fewer columns than rows of w2";
}

}  // namespace
}  // namespace dsv4
