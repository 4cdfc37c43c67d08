// Checks an emulated implementation of sparse_mla.h: against the oracle, and the same bits in any
// order of events.

#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "dsv4/base/error.h"
#include "dsv4/ops/model/sparse_mla/sparse_mla_case.h"

namespace dsv4::emulator {

// `whole`: as from make_args(); args may omit some outputs.
inline void check_outputs(const SparseMlaArgs& args, const SparseMlaWant& want,
                          const test::Outputs& whole) {
  const auto compare = [](const TensorView& got, const std::vector<double>& values,
                          const TensorView& all, const test::Tolerance& tolerance) {
    return got.empty() ? "" : test::compare(all, test::with_gaps(values, got, all), tolerance);
  };
  // The error of f32 logits grows with their size.
  const float usual = 1.f / std::sqrt(static_cast<float>(args.q.dim(-1)));
  const test::Tolerance logits{.ulps = 2, .abs = 1e-4 * std::max(1.f, args.scale / usual)};
  const test::Tolerance values = test::tolerance(Numerics::kOfficial, args.out.dtype);
  ASSERT_EQ(compare(args.out, want.out, whole.out, values), "");
  ASSERT_EQ(compare(args.lse, want.lse, whole.lse, logits), "");
  ASSERT_EQ(compare(args.max_logits, want.max_logits, whole.max_logits, logits), "");
}

// run(i), for i from 0 to `runs`, fills the outputs.
template <class Run>
void check_runs(test::Arena& arena, const SparseMlaArgs& args, const test::Outputs& whole, int runs,
                const Run& run) {
  const SparseMlaWant want = sparse_mla_oracle({.numerics = Numerics::kOfficial}, args);
  arena.freeze();
  std::vector<std::byte> first;
  for (int i = 0; i < runs; ++i) {
    SCOPED_TRACE(fmt::format("run {}", i));
    arena.prepare();
    ASSERT_NO_THROW(run(i));
    arena.verify();
    if (i == 0) first = arena.written();
    EXPECT_TRUE(first == arena.written()) << "the order of events changed bits";
    check_outputs(args, want, whole);
    if (testing::Test::HasFatalFailure()) return;
  }
}

}  // namespace dsv4::emulator
