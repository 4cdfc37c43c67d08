#include "dsv4/ops/kbit/row_errors.h"

#include <cstring>

#include "dsv4/ops/kbit/row_errors_case.h"
#include "tests/harness/op_check.h"

namespace dsv4 {
namespace {

using test::Arena;

// The formula, in 64 bits of mantissa. [n, 5]
std::vector<double> row_errors_oracle(const RowErrorsArgs& args) {
  std::vector<double> out;
  for (int64_t row = 0; row < args.x.dim(0); ++row) {
    long double sums[kErrorSums] = {};
    for (int64_t i = 0; i < args.x.dim(1); ++i) {
      const long double x = args.x.row<float>(row)[i], y = args.y.row<float>(row)[i];
      const long double h = args.importance.empty() ? 1 : args.importance.as<float>()[i];
      const long double terms[] = {x * x, (y - x) * (y - x), x * y, h * x * x, h * x * y};
      for (int64_t j = 0; j < kErrorSums; ++j) sums[j] += terms[j];
    }
    for (const long double sum : sums) out.push_back(static_cast<double>(sum));
  }
  return out;
}

void check_rows(int64_t n, int64_t k, bool importance) {
  Arena arena;
  Rng rng(static_cast<uint64_t>(n * 1000 + k));
  const RowErrorsArgs args = test::random_row_errors(arena, rng, n, k, importance);
  test::OpCase<RowErrorsArgs> test{
      .name = fmt::format("row_errors {}x{} importance {}", n, k, importance),
      .args = args,
      .num_tokens = n};
  // k additions, each rounded to f64, of terms that do not cancel: x y is never negative here.
  test.outputs = {
      {"sums", args.sums, row_errors_oracle(args), {.ulps = static_cast<double>(k + 4)}}};
  test.one_token = [](const RowErrorsArgs& a, int64_t i) {
    RowErrorsArgs one = a;
    one.x = a.x.slice(0, i, i + 1), one.y = a.y.slice(0, i, i + 1);
    one.sums = a.sums.slice(0, i, i + 1);
    return one;
  };
  test.strided = [](RowErrorsArgs& a, test::StridedCopy& copy) {
    copy(a.x), copy(a.y), copy(a.sums);
  };
  check_op(row_errors.impls, {}, arena, test);
}

TEST(RowErrors, MatchTheOracle) {
  for (const bool importance : {false, true}) {
    for (const int64_t n : {0, 1, 31, 65}) {
      for (const int64_t k : {0, 1, 32, 77, 200}) check_rows(n, k, importance);
    }
  }
}

// The bits are those of a plain loop, which files depend on.
TEST(RowErrors, AddInOrder) {
  constexpr int64_t kRows = 3, kColumns = 1000;
  Arena arena;
  Rng rng(5);
  const RowErrorsArgs args = test::random_row_errors(arena, rng, kRows, kColumns, true);
  arena.prepare();
  row_errors({}, args);
  for (int64_t row = 0; row < kRows; ++row) {
    double noise = 0, weighted = 0;
    for (int64_t i = 0; i < kColumns; ++i) {
      const double x = args.x.row<float>(row)[i], y = args.y.row<float>(row)[i];
      noise += (y - x) * (y - x);
      weighted += double{args.importance.as<float>()[i]} * x * x;
    }
    EXPECT_EQ(args.sums.row<double>(row)[1], noise);
    EXPECT_EQ(args.sums.row<double>(row)[3], weighted);
  }
}

TEST(RowErrors, ReportErrors) {
  Arena arena;
  Rng rng(6);
  RowErrorsArgs args = test::random_row_errors(arena, rng, 2, 32, false);
  args.y = arena.input(DType::kF32, {2, 31});
  EXPECT_EQ(test::error_of([&] { row_errors({}, args); }),
            "y: want [n=2, k=32] F32, got [2, 31] F32");
}

}  // namespace
}  // namespace dsv4
