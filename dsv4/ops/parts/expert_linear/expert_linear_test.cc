#include "dsv4/ops/parts/expert_linear/expert_linear.h"

#include <memory>

#include "dsv4/base/error.h"
#if DSV4_CUDA
#include "dsv4/device/device.h"
#endif
#include "dsv4/ops/parts/expert_linear/expert_linear_case.h"
#include "tests/harness/op_check.h"
#include "tests/harness/weights.h"

namespace dsv4 {
namespace {

using test::Arena;

// As in linear: a random walk over k roundings of f32, then the store.
test::Tolerance tolerance_of(const ExpertLinearArgs& args, double magnitude) {
  const double walk = 4 + std::sqrt(static_cast<double>(args.x.dim(1)));
  return {.ulps = args.out.dtype == DType::kF32 ? 2.0 : 0.51, .abs = 0x1p-24 * walk * magnitude};
}

// Row i alone is a call with offsets of its own: [rows, e + 1], 0 up to its expert and 1 after it.
TensorView offsets_of_rows(Arena& arena, const ExpertLinearArgs& args) {
  const int64_t rows = args.x.dim(0), ends = args.offsets.dim(0);
  const TensorView all = arena.input(DType::kI32, {rows, ends});
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t e = 0; e < ends; ++e)
      all.row<int32_t>(r)[e] = args.offsets.as<int32_t>()[e] > r ? 1 : 0;
  }
  return all;
}

void check_rows(Arena& arena, Rng& rng, const std::string& name, DType dtype,
                std::span<const WeightView> weights, const std::vector<int32_t>& rows_of) {
  const ExpertLinearArgs args = test::random_expert_linear(arena, rng, dtype, weights, rows_of);
  const TensorView alone = offsets_of_rows(arena, args);
  arena.keep_order({args.offsets, const_cast<std::byte*>(args.offsets.data)});
  arena.keep_order(alone);
  const double magnitude = expert_linear_magnitude(args);
  expert_linear.check(args);
  test::OpCase<ExpertLinearArgs> test{
      .name = fmt::format("{} {} rows={}", name, dsv4::name(dtype), args.x.dim(0)),
      .args = args,
      .outputs = {{"out", args.out, expert_linear_oracle(args), tolerance_of(args, magnitude),
                   magnitude}},
      .one_token =
          [alone](const ExpertLinearArgs& a, int64_t i) {
            ExpertLinearArgs one = a;
            one.x = a.x.slice(0, i, i + 1), one.out = a.out.slice(0, i, i + 1);
            one.offsets = {TensorMeta::contiguous(DType::kI32, {alone.dim(1)}),
                           reinterpret_cast<std::byte*>(alone.row<int32_t>(i))};
            return one;
          },
      .num_tokens = args.x.dim(0)};
  test.strided = [](ExpertLinearArgs& a, test::StridedCopy& copy) { copy(a.x), copy(a.out); };
  check_op(expert_linear.impls, Context{}, arena, test);
}

// Experts without rows at either end and in the middle, with one, with many, and all rows at one.
const std::vector<std::vector<int32_t>> kRowsOf = {
    {0, 1, 0, 37, 4}, {3, 0, 0, 0, 0}, {0, 0, 0, 0, 50}, {0, 0, 0, 0, 0}, {1, 1, 1, 1, 1}};

TEST(ExpertLinear, AgreesWithOracle) {
  for (const test::StoredAs& stored : test::kAllStored) {
    for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
      Arena arena;
      Rng rng(static_cast<uint64_t>(stored.bits) * 31 + static_cast<uint64_t>(dtype));
      const auto weights = test::random_stack(arena, rng, stored, 5, 35, 96);
      const std::vector<int32_t>& rows = kRowsOf[rng.below(std::ssize(kRowsOf))];
      check_rows(arena, rng, name(stored), dtype, weights, rows);
    }
  }
}

TEST(ExpertLinear, AnyRoutingOfAnyK) {
  for (int bits = kMinKbit; bits <= kMaxKbit; ++bits) {
    for (const std::vector<int32_t>& rows : kRowsOf) {
      Arena arena;
      Rng rng(static_cast<uint64_t>(bits));
      const auto weights = test::random_stack(arena, rng, {WeightFormat::kKbit, bits}, 5, 35, 288);
      check_rows(arena, rng, fmt::format("k{}", bits), DType::kBF16, weights, rows);
    }
  }
}

// Whole tiles, in f16 too; more experts than one launch of others lists.
TEST(ExpertLinear, WholeTilesAndManyExperts) {
  for (const DType dtype : {DType::kBF16, DType::kF16}) {
    Arena arena;
    Rng rng(8);
    const auto weights = test::random_stack(arena, rng, {WeightFormat::kKbit, 3}, 5, 256, 1024);
    check_rows(arena, rng, "whole", dtype, weights, {0, 1, 9, 0, 2});
    std::vector<int32_t> rows(600);
    for (int i = 0; i < 20; ++i) rows[static_cast<size_t>(rng.below(600))] = 1 + i % 3;
    const auto many = test::random_stack(arena, rng, {WeightFormat::kKbit, 4, true}, 600, 19, 64);
    check_rows(arena, rng, "600 experts", dtype, many, rows);
  }
}

// Experts of one call in different formats and K; more rows than are packed at a time.
TEST(ExpertLinear, EveryExpertInAFormatOfItsOwn) {
  Arena arena;
  Rng rng(4);
  std::vector<WeightView> weights;
  std::vector<int32_t> rows;
  for (const test::StoredAs& stored : test::kAllStored) {
    weights.push_back(test::random_weight(arena, rng, stored, 20, 64));
    rows.push_back(static_cast<int32_t>(rng.below(400)));
  }
  check_rows(arena, rng, "mixed", DType::kF16, weights, rows);
}

#if DSV4_CUDA
TEST(ExpertLinear, DryRunChoosesByRowsOfAnExpert) {
  const std::unique_ptr<Device> device =
      Device::dry_run({.name = "H", .major = 9, .num_sms = 132, .max_smem_per_block = 227 << 10});
  const auto chosen = [&](const test::StoredAs& stored, int rows, bool invariant = false) {
    Arena arena;
    Rng rng(6);
    const auto weights = test::random_stack(arena, rng, stored, 3, 24, 64);
    const ExpertLinearArgs args =
        test::random_expert_linear(arena, rng, DType::kBF16, weights, {rows, 0, rows});
    const Context context{.need_batch_invariant = invariant, .device = device.get()};
    return choose(expert_linear, context, args).name;
  };
  const test::StoredAs kbit{WeightFormat::kKbit, 3, true};
  EXPECT_EQ(chosen(kbit, 1), "cuda_kbit");
  EXPECT_EQ(chosen(kbit, 15), "cuda_kbit");
  EXPECT_EQ(chosen(kbit, 16), "cuda_mma");
  EXPECT_EQ(chosen(kbit, 16, true), "cuda_kbit");
  EXPECT_EQ(chosen({WeightFormat::kMxfp4}, 4), "cuda_mma");
}
#endif

TEST(ExpertLinear, ReportsErrors) {
  Arena arena;
  Rng rng(5);
  auto weights = test::random_stack(arena, rng, {WeightFormat::kKbit, 3}, 2, 8, 64);
  const ExpertLinearArgs args =
      test::random_expert_linear(arena, rng, DType::kF32, weights, {2, 1});
  const auto error = [&] { return test::error_of([&] { expert_linear(Context{}, args); }); };
  auto* offsets = const_cast<int32_t*>(args.offsets.as<int32_t>());
  offsets[1] = 5;
  EXPECT_TRUE(error().ends_with("offsets[2] is 3, after 5")) << error();
  offsets[1] = 2, offsets[2] = 4;
  EXPECT_TRUE(error().ends_with("offsets run from 0 to 4: want 0 to the 3 rows of x")) << error();
  offsets[2] = 3;
  weights[1] = test::random_weight(arena, rng, {WeightFormat::kBF16}, 8, 32);
  EXPECT_TRUE(error().ends_with("weight of expert 1: want [8, 64], got [8, 32]")) << error();
}

}  // namespace
}  // namespace dsv4
