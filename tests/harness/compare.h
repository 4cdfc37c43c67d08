// Comparison of an op's output with its fp64 oracle: every element within an allowed distance, NaN
// and infinities at the same places, and a cosine for the whole.

#pragma once

#include <string>
#include <vector>

#include "dsv4/tensor/tensor.h"

namespace dsv4::test {

// An element passes when |got - want| <= ulps * ulp(want in the output dtype) + abs + rel *
// max|want|. `rel` is for outputs that are long sums: their rounding scales with the summands, not
// with the sum.
struct Tolerance {
  double ulps = 1;
  double abs = 0;
  double rel = 0;
  double cosine = 1e-5;  // 1 - cosine(got, want); ignored for integers and short vectors
};

// Empty when `got` agrees; otherwise a report with the worst elements.
std::string compare(const ConstTensorView& got, const std::vector<double>& want,
                    const Tolerance& tolerance);

double ulp(DType dtype, double value);

}  // namespace dsv4::test
