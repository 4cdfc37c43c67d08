// Checks a call of linear.h by every implementation of the table, for its three test programs.

#pragma once

#include <string>

#include "dsv4/ops/parts/linear/linear_case.h"
#include "tests/harness/op_check.h"
#include "tests/harness/weights.h"

namespace dsv4::test {

inline LinearArgs tokens(const LinearArgs& args, int64_t begin, int64_t end) {
  LinearArgs part = args;
  part.x = args.x.slice(0, begin, end);
  if (!args.x_scale.empty()) part.x_scale = args.x_scale.slice(0, begin, end);
  part.out = args.out.slice(0, begin, end);
  return part;
}

// what: the format and how x is stored
inline void check_linear(Arena& arena, const LinearArgs& args, const std::string& what,
                         const Context& context = {}) {
  const int64_t t = args.x.dim(0);
  const double magnitude = linear_magnitude(args);
  linear.check(args);
  OpCase<LinearArgs> test{
      .name = fmt::format("{} t={} n={} k={} groups={} to {}", what, t, args.weight.n,
                          args.weight.k, args.groups, name(args.out.dtype)),
      .args = args,
      .outputs = {{"out", args.out, linear_oracle(args), linear_tolerance(args, magnitude),
                   magnitude}},
      .one_token = [](const LinearArgs& a, int64_t i) { return tokens(a, i, i + 1); },
      .num_tokens = t};
  test.strided = [](LinearArgs& a, StridedCopy& copy) { copy(a.x), copy(a.x_scale), copy(a.out); };
  check_op(linear.impls, context, arena, test);
}

}  // namespace dsv4::test
