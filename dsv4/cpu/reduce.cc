#include "dsv4/cpu/reduce.h"

#include <algorithm>
#include <cmath>
#include <limits>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "dsv4/cpu/reduce.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep

#include "hwy/contrib/math/math-inl.h"  // per target, so after foreach_target
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace dsv4::cpu::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

const hn::ScalableTag<float> kF32;
const hn::ScalableTag<double> kF64;
const hn::Rebind<float, decltype(kF64)> kHalf;  // as many floats as fit a vector of doubles
using F64Vec = hn::Vec<decltype(kF64)>;

// hn::MaxOfLanes() of Highway 1.0.3 gives the lowest finite number for lanes of -inf on the
// one-lane target.
float LargestLane(hn::Vec<decltype(kF32)> v) {
  HWY_ALIGN float lanes[HWY_MAX_BYTES / sizeof(float)];
  hn::Store(v, kF32, lanes);
  return *std::max_element(lanes, lanes + hn::Lanes(kF32));
}

float MaxValue(const float* x, int64_t n) {
  const auto step = static_cast<int64_t>(hn::Lanes(kF32));
  constexpr float kLowest = -std::numeric_limits<float>::infinity();
  auto largest = hn::Set(kF32, kLowest);
  auto nan = hn::Zero(kF32);  // NaN in a lane that has seen one
  int64_t i = 0;
  for (; i + step <= n; i += step) {
    const auto v = hn::LoadU(kF32, x + i);
    nan = hn::IfThenElse(hn::IsNaN(v), v, nan);
    largest = hn::Max(largest, v);
  }
  bool any_nan = !hn::AllFalse(kF32, hn::IsNaN(nan));
  float most = any_nan ? kLowest : LargestLane(largest);
  for (; i < n; ++i) {
    any_nan = any_nan || std::isnan(x[i]);
    most = x[i] > most ? x[i] : most;
  }
  return any_nan ? std::numeric_limits<float>::quiet_NaN() : most;
}

// exp underflows to 0 below -745; the clamp excludes -inf and huge arguments from the polynomial.
F64Vec Term(hn::Vec<decltype(kHalf)> x, F64Vec shift, F64Vec factor) {
  const F64Vec power = hn::Mul(hn::Sub(hn::PromoteTo(kF64, x), shift), factor);
  return hn::Exp(kF64, hn::Max(power, hn::Set(kF64, -800.0)));
}

double SumExp(const float* x, int64_t n, double shift, double factor) {
  const auto step = static_cast<int64_t>(hn::Lanes(kF64));
  const F64Vec shifts = hn::Set(kF64, shift), factors = hn::Set(kF64, factor);
  F64Vec sum0 = hn::Zero(kF64), sum1 = sum0;
  int64_t i = 0;
  for (; i + 2 * step <= n; i += 2 * step) {
    sum0 = hn::Add(sum0, Term(hn::LoadU(kHalf, x + i), shifts, factors));
    sum1 = hn::Add(sum1, Term(hn::LoadU(kHalf, x + i + step), shifts, factors));
  }
  double total = hn::GetLane(hn::SumOfLanes(kF64, hn::Add(sum0, sum1)));
  for (; i < n; ++i) total += std::exp((static_cast<double>(x[i]) - shift) * factor);
  return total;
}

}  // namespace
}  // namespace dsv4::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace dsv4::cpu {

HWY_EXPORT(MaxValue);
HWY_EXPORT(SumExp);

float max_value(const float* x, int64_t n) {
  return HWY_DYNAMIC_DISPATCH(MaxValue)(x, n);
}
double sum_exp(const float* x, int64_t n, double shift, double factor) {
  return HWY_DYNAMIC_DISPATCH(SumExp)(x, n, shift, factor);
}

}  // namespace dsv4::cpu
#endif  // HWY_ONCE
