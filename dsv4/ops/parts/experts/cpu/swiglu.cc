#include "dsv4/ops/parts/experts/cpu/swiglu.h"

#include <cmath>
#include <numbers>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "dsv4/ops/parts/experts/cpu/swiglu.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"

#include "hwy/contrib/math/math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace dsv4::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

void Swiglu(const float* g, const float* u, float weight, float limit, float* h, int64_t n) {
  const hn::CappedTag<float, kSwigluPad> f32;
  const auto high = hn::Set(f32, limit), low = hn::Neg(high);
  const auto one = hn::Set(f32, 1.f), factor = hn::Set(f32, weight);
  const auto at_most = [&](auto v) HWY_ATTR { return hn::IfThenElse(hn::Gt(v, high), high, v); };
  for (int64_t i = 0; i < n; i += static_cast<int64_t>(hn::Lanes(f32))) {
    const auto gate = at_most(hn::LoadU(f32, g + i));  // comparisons, not Min: NaN must stay
    auto up = at_most(hn::LoadU(f32, u + i));
    up = hn::IfThenElse(hn::Lt(up, low), low, up);
    // e^-|v| never overflows: silu(v) = v / (1 + e^-v) = v e^v / (1 + e^v).
    const auto e = hn::Exp(f32, hn::Neg(hn::Abs(gate)));
    const auto numerator = hn::IfThenElse(hn::Lt(gate, hn::Zero(f32)), hn::Mul(gate, e), gate);
    const auto silu = hn::Div(numerator, hn::Add(one, e));
    hn::StoreU(hn::Mul(factor, hn::Mul(silu, up)), f32, h + i);
  }
}

}  // namespace dsv4::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace dsv4 {

HWY_EXPORT(Swiglu);

namespace {

double gelu(double v) {
  return v * 0.5 * (1 + std::erf(v / std::numbers::sqrt2));
}
double gelu_tanh(double v) {
  static const double factor = std::sqrt(2 / std::numbers::pi);
  return v * 0.5 * (1 + std::tanh(factor * (v + 0.044715 * v * v * v)));
}

}  // namespace

void swiglu(const float* g, const float* u, float weight, float limit, float* h, int64_t n) {
  HWY_DYNAMIC_DISPATCH(Swiglu)(g, u, weight, limit, h, n);
}

void gated(GateActivation activation, const float* g, const float* u, float weight, float limit,
           float* h, int64_t n) {
  if (activation == GateActivation::kSilu) return swiglu(g, u, weight, limit, h, n);
  const auto a = activation == GateActivation::kGelu ? gelu : gelu_tanh;
  for (int64_t i = 0; i < n; ++i) {
    const float gate = g[i] > limit ? limit : g[i];
    const float up = u[i] > limit ? limit : u[i] < -limit ? -limit : u[i];
    h[i] = weight * (static_cast<float>(a(static_cast<double>(gate))) * up);
  }
}

}  // namespace dsv4
#endif  // HWY_ONCE
