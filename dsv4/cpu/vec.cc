#include "dsv4/cpu/vec.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "dsv4/cpu/vec.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"

#include "dsv4/formats/e4m3.h"
#include "dsv4/formats/float16.h"

HWY_BEFORE_NAMESPACE();
namespace dsv4::cpu::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

const hn::ScalableTag<float> kF32;
const hn::Rebind<uint16_t, decltype(kF32)> kU16;
const hn::RebindToUnsigned<decltype(kF32)> kU32;
using F32Vec = hn::Vec<decltype(kF32)>;

int64_t lanes() {
  return static_cast<int64_t>(hn::Lanes(kF32));
}

// Four accumulators hide the latency of the fused multiply-add; the tail is scalar.
float Dot(const float* a, const float* b, int64_t n) {
  const int64_t step = lanes();
  F32Vec sum0 = hn::Zero(kF32), sum1 = sum0, sum2 = sum0, sum3 = sum0;
  int64_t i = 0;
  for (; i + 4 * step <= n; i += 4 * step) {
    sum0 = hn::MulAdd(hn::LoadU(kF32, a + i), hn::LoadU(kF32, b + i), sum0);
    sum1 = hn::MulAdd(hn::LoadU(kF32, a + i + step), hn::LoadU(kF32, b + i + step), sum1);
    sum2 = hn::MulAdd(hn::LoadU(kF32, a + i + 2 * step), hn::LoadU(kF32, b + i + 2 * step), sum2);
    sum3 = hn::MulAdd(hn::LoadU(kF32, a + i + 3 * step), hn::LoadU(kF32, b + i + 3 * step), sum3);
  }
  for (; i + step <= n; i += step) {
    sum0 = hn::MulAdd(hn::LoadU(kF32, a + i), hn::LoadU(kF32, b + i), sum0);
  }
  float total =
      hn::GetLane(hn::SumOfLanes(kF32, hn::Add(hn::Add(sum0, sum1), hn::Add(sum2, sum3))));
  for (; i < n; ++i) total += a[i] * b[i];
  return total;
}

void Axpy(float alpha, const float* x, float* y, int64_t n) {
  const int64_t step = lanes();
  const F32Vec factor = hn::Set(kF32, alpha);
  int64_t i = 0;
  for (; i + step <= n; i += step) {
    hn::StoreU(hn::MulAdd(factor, hn::LoadU(kF32, x + i), hn::LoadU(kF32, y + i)), kF32, y + i);
  }
  for (; i < n; ++i) y[i] += alpha * x[i];
}

void Scale(float alpha, const float* x, float* y, int64_t n) {
  const int64_t step = lanes();
  const F32Vec factor = hn::Set(kF32, alpha);
  int64_t i = 0;
  for (; i + step <= n; i += step) hn::StoreU(hn::Mul(factor, hn::LoadU(kF32, x + i)), kF32, y + i);
  for (; i < n; ++i) y[i] = alpha * x[i];
}

void Multiply(float alpha, const float* x, const float* w, float* y, int64_t n) {
  const int64_t step = lanes();
  const F32Vec factor = hn::Set(kF32, alpha);
  int64_t i = 0;
  for (; i + step <= n; i += step) {
    hn::StoreU(hn::Mul(hn::LoadU(kF32, w + i), hn::Mul(factor, hn::LoadU(kF32, x + i))), kF32,
               y + i);
  }
  for (; i < n; ++i) y[i] = w[i] * (alpha * x[i]);
}

void WidenBf16(const uint16_t* x, float* y, int64_t n) {
  const int64_t step = lanes();
  int64_t i = 0;
  for (; i + step <= n; i += step) {
    const auto wide = hn::PromoteTo(kU32, hn::LoadU(kU16, x + i));
    hn::StoreU(hn::BitCast(kF32, hn::ShiftLeft<16>(wide)), kF32, y + i);
  }
  for (; i < n; ++i) y[i] = bf16_to_f32(x[i]);
}

void NarrowBf16(const float* x, uint16_t* y, int64_t n) {
  const int64_t step = lanes();
  const auto one = hn::Set(kU32, 1), half = hn::Set(kU32, 0x7fff), quiet = hn::Set(kU32, 0x400000);
  int64_t i = 0;
  for (; i + step <= n; i += step) {
    const F32Vec value = hn::LoadU(kF32, x + i);
    const auto bits = hn::BitCast(kU32, value);
    const auto odd = hn::And(hn::ShiftRight<16>(bits), one);
    const auto rounded = hn::Add(bits, hn::Add(half, odd));
    const auto is_nan = hn::RebindMask(kU32, hn::IsNaN(value));
    const auto code = hn::ShiftRight<16>(hn::IfThenElse(is_nan, hn::Or(bits, quiet), rounded));
    hn::StoreU(hn::TruncateTo(kU16, code), kU16, y + i);
  }
  for (; i < n; ++i) y[i] = f32_to_bf16(x[i]);
}

// The steps of f32_to_f16 in formats/float16.h: Highway's own conversion does not handle infinity
// and NaN on its emulated targets.
void NarrowF16(const float* x, uint16_t* y, int64_t n) {
  const int64_t step = lanes();
  const auto u32 = [](uint32_t v) HWY_ATTR { return hn::Set(kU32, v); };
  int64_t i = 0;
  for (; i + step <= n; i += step) {
    const auto bits = hn::BitCast(kU32, hn::LoadU(kF32, x + i));
    const auto sign = hn::And(hn::ShiftRight<16>(bits), u32(0x8000u));
    const auto magnitude = hn::And(bits, u32(0x7fffffffu));
    const F32Vec value = hn::BitCast(kF32, magnitude);
    const auto tiny =
        hn::Sub(hn::BitCast(kU32, hn::Add(value, hn::Set(kF32, 0.5f))), u32(0x3f000000u));
    const auto odd = hn::And(hn::ShiftRight<13>(magnitude), u32(1));
    const auto rounded = hn::ShiftRight<13>(hn::Add(magnitude, hn::Add(u32(0xfffu), odd)));
    const auto normal = hn::Min(hn::Sub(rounded, u32(112u << 10)), u32(0x7c00u));
    const auto is_tiny = hn::RebindMask(kU32, hn::Lt(value, hn::Set(kF32, 0x1p-14f)));
    const auto is_nan = hn::RebindMask(kU32, hn::IsNaN(value));
    const auto number = hn::IfThenElse(is_tiny, tiny, normal);
    const auto code = hn::Or(sign, hn::IfThenElse(is_nan, u32(0x7e00u), number));
    hn::StoreU(hn::TruncateTo(kU16, code), kU16, y + i);
  }
  for (; i < n; ++i) y[i] = f32_to_f16(x[i]);
}

// An e4m3 code placed in the fields of an f16 (sign at bit 15, exponent and mantissa from bit 7)
// reads as value * 2^-8, subnormals included, so one shift, one mask and one conversion decode it.
// NaN codes would read as 480 and are replaced.
void DecodeE4m3(const uint8_t* codes, float scale, float* y, int64_t n) {
  const hn::Rebind<int8_t, decltype(kF32)> i8;
  const hn::Rebind<int16_t, decltype(kF32)> i16;
  const hn::Rebind<hwy::float16_t, decltype(kF32)> f16;
  const int64_t step = lanes();
  const F32Vec factor = hn::Set(kF32, scale), shift = hn::Set(kF32, 256.f);
  const F32Vec nan_at = hn::Set(kF32, 480.f), nan = hn::Set(kF32, bf16_to_f32(0x7fc0));
  int64_t i = 0;
  for (; i + step <= n; i += step) {
    const auto code = hn::LoadU(i8, reinterpret_cast<const int8_t*>(codes + i));
    const auto wide = hn::ShiftLeft<7>(hn::PromoteTo(i16, code));
    const auto half = hn::And(wide, hn::Set(i16, static_cast<int16_t>(0xbf80)));
    const F32Vec value = hn::Mul(hn::PromoteTo(kF32, hn::BitCast(f16, half)), shift);
    const F32Vec clean = hn::IfThenElse(hn::Eq(hn::Abs(value), nan_at), nan, value);
    hn::StoreU(hn::Mul(factor, clean), kF32, y + i);
  }
  for (; i < n; ++i) y[i] = scale * e4m3_to_f32(codes[i]);
}

}  // namespace dsv4::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace dsv4::cpu {

HWY_EXPORT(Dot);
HWY_EXPORT(Axpy);
HWY_EXPORT(Scale);
HWY_EXPORT(Multiply);
HWY_EXPORT(WidenBf16);
HWY_EXPORT(NarrowBf16);
HWY_EXPORT(NarrowF16);
HWY_EXPORT(DecodeE4m3);

float dot(const float* a, const float* b, int64_t n) {
  return HWY_DYNAMIC_DISPATCH(Dot)(a, b, n);
}
float sum_squares(const float* a, int64_t n) {
  return dot(a, a, n);
}
void axpy(float alpha, const float* x, float* y, int64_t n) {
  HWY_DYNAMIC_DISPATCH(Axpy)(alpha, x, y, n);
}
void scale(float alpha, const float* x, float* y, int64_t n) {
  HWY_DYNAMIC_DISPATCH(Scale)(alpha, x, y, n);
}
void multiply(float alpha, const float* x, const float* w, float* y, int64_t n) {
  HWY_DYNAMIC_DISPATCH(Multiply)(alpha, x, w, y, n);
}
void widen_bf16(const uint16_t* x, float* y, int64_t n) {
  HWY_DYNAMIC_DISPATCH(WidenBf16)(x, y, n);
}
void narrow_bf16(const float* x, uint16_t* y, int64_t n) {
  HWY_DYNAMIC_DISPATCH(NarrowBf16)(x, y, n);
}
void narrow_f16(const float* x, uint16_t* y, int64_t n) {
  HWY_DYNAMIC_DISPATCH(NarrowF16)(x, y, n);
}
void decode_e4m3(const uint8_t* codes, float scale, float* y, int64_t n) {
  HWY_DYNAMIC_DISPATCH(DecodeE4m3)(codes, scale, y, n);
}

}  // namespace dsv4::cpu
#endif  // HWY_ONCE
