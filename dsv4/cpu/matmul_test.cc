#include "dsv4/cpu/matmul.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "dsv4/base/rng.h"
#include "tests/harness/op_check.h"

namespace dsv4::cpu {
namespace {

// Rows of `columns` random values with a gap of NaN after each.
struct Input {
  std::vector<float> values;
  Matrix<const float> view;

  Input(int64_t rows, int64_t columns, uint64_t seed) {
    const int64_t stride = columns + 3;
    values.assign(static_cast<size_t>(rows * stride), std::nanf(""));
    Rng rng(seed);
    for (int64_t i = 0; i < rows * stride; ++i) {
      if (i % stride < columns) values[static_cast<size_t>(i)] = static_cast<float>(rng.normal());
    }
    view = {values.data(), rows, columns, stride};
  }
};

struct Output {
  std::vector<float> values;
  Matrix<float> view;

  Output(int64_t rows, int64_t columns)
      : values(static_cast<size_t>(rows * (columns + 2)), -7.f),
        view{values.data(), rows, columns, columns + 2} {}
};

// sum_c |a_c b_c| 2^-24 (terms of one accumulator + 8) bounds the error of a dot product; the
// scalar instruction set has one accumulator for all terms.
void expect_near(const Matrix<float>& got, int64_t i, int64_t j, double want, double magnitude,
                 int64_t terms) {
  EXPECT_NEAR(static_cast<double>(got.row(i)[j]), want,
              magnitude * 0x1p-24 * static_cast<double>(terms + 8))
      << i << ", " << j;
}

void check_abt(int64_t m, int64_t n, int64_t k) {
  const Input a(m, k, 1), b(n, k, 2);
  Output out(m, n);
  matmul_abt(a.view, b.view, out.view);
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t j = 0; j < n; ++j) {
      double want = 0, magnitude = 0;
      for (int64_t c = 0; c < k; ++c) {
        const double term =
            static_cast<double>(a.view.row(i)[c]) * static_cast<double>(b.view.row(j)[c]);
        want += term, magnitude += std::abs(term);
      }
      expect_near(out.view, i, j, want, magnitude, k);
      Output one(1, 1);
      matmul_abt({a.view.row(i), 1, k, k}, {b.view.row(j), 1, k, k}, one.view);
      EXPECT_EQ(one.values[0], out.view.row(i)[j]) << "bits depend on the tile";
    }
    EXPECT_EQ(out.view.row(i)[n], -7.f) << "written past the row";
  }
}

void check_ab(int64_t m, int64_t n, int64_t k) {
  const Input a(m, n, 1), b(n, k, 2);
  Output out(m, k);
  matmul_ab(a.view, b.view, out.view);
  for (int64_t i = 0; i < m; ++i) {
    Output one(1, k);
    matmul_ab({a.view.row(i), 1, n, n}, b.view, one.view);
    for (int64_t c = 0; c < k; ++c) {
      double want = 0, magnitude = 0;
      for (int64_t j = 0; j < n; ++j) {
        const double term =
            static_cast<double>(a.view.row(i)[j]) * static_cast<double>(b.view.row(j)[c]);
        want += term, magnitude += std::abs(term);
      }
      expect_near(out.view, i, c, want, magnitude, n);
      EXPECT_EQ(one.values[static_cast<size_t>(c)], out.view.row(i)[c])
          << "bits depend on the tile";
    }
    EXPECT_EQ(out.view.row(i)[k], -7.f) << "written past the row";
  }
}

TEST(Matmul, AgreesWithDoubleOnEveryInstructionSet) {
  test::for_each_target([] {
    for (const int64_t m : {0, 1, 3, 4, 9, 13}) {
      for (const int64_t n : {0, 1, 4, 7}) {
        for (const int64_t k : {0, 1, 5, 16, 33, 200}) {
          check_abt(m, n, k);
          check_ab(m, n, k);
        }
      }
    }
  });
}

}  // namespace
}  // namespace dsv4::cpu
