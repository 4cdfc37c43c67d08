// Vector helpers for the Highway code of CPU implementations. Include after hwy/highway.h, in files
// that are compiled through foreach_target.

#include "hwy/contrib/math/math-inl.h"
#include "hwy/highway.h"

#if defined(DSV4_CPU_MATH_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef DSV4_CPU_MATH_INL_H
#undef DSV4_CPU_MATH_INL_H
#else
#define DSV4_CPU_MATH_INL_H
#endif

HWY_BEFORE_NAMESPACE();
namespace dsv4::cpu::HWY_NAMESPACE {

// bf16(x) of docs/spec/dsv4.md 0.4, still as f32: round to nearest even, NaN kept.
template <class D, class V>
HWY_INLINE V RoundToBf16(D d, V x) {
  namespace hn = hwy::HWY_NAMESPACE;
  const hn::RebindToUnsigned<D> u32;
  const auto bits = hn::BitCast(u32, x);
  const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(u32, 1));
  const auto rounded = hn::Add(bits, hn::Add(hn::Set(u32, 0x7fff), odd));
  const auto code = hn::And(rounded, hn::Set(u32, 0xffff0000u));
  return hn::IfThenElse(hn::IsNaN(x), x, hn::BitCast(d, code));
}

// e^x for x <= 0, within 1 ulp; exactly 0 at -inf. Unlike in Highway's Exp, NaN is kept.
template <class D, class V>
HWY_INLINE V ExpNonPositive(D d, V x) {
  namespace hn = hwy::HWY_NAMESPACE;
  return hn::IfThenElse(hn::IsNaN(x), x, hn::Exp(d, x));
}

}  // namespace dsv4::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // DSV4_CPU_MATH_INL_H
