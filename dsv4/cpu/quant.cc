#include "dsv4/cpu/quant.h"

#include <algorithm>
#include <cmath>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "dsv4/cpu/quant.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"

#include "dsv4/formats/quant_group.h"

HWY_BEFORE_NAMESPACE();
namespace dsv4::cpu::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

const hn::ScalableTag<float> kF32;
const hn::RebindToUnsigned<decltype(kF32)> kU32;
const hn::Rebind<uint8_t, decltype(kF32)> kU8;
const hn::CappedTag<float, 4> kQuad;
using F32Vec = hn::Vec<decltype(kF32)>;
using U32Vec = hn::Vec<decltype(kU32)>;

int64_t lanes() {
  return static_cast<int64_t>(hn::Lanes(kF32));
}

// The largest magnitude. A comparison with NaN is false, so NaN is never selected, as in absmax().
float AbsMax(const float* x, int64_t n) {
  const int64_t step = lanes();
  F32Vec largest = hn::Zero(kF32);
  int64_t i = 0;
  for (; i + step <= n; i += step) {
    const F32Vec a = hn::Abs(hn::LoadU(kF32, x + i));
    largest = hn::IfThenElse(hn::Gt(a, largest), a, largest);
  }
  const float tail = absmax(x + i, static_cast<int>(n - i));
  return std::max(hn::GetLane(hn::MaxOfLanes(kF32, largest)), tail);
}

// Magnitudes rounded to nearest even with kMantissa bits after the leading one; below
// 2^kMinExponent the grid is that of 2^kMinExponent. Adding and then subtracting 2^23 grid steps
// makes the float adder round. `a` is finite and small.
template <int kMantissa, int kMinExponent>
F32Vec RoundMagnitude(F32Vec a) {
  const auto exponent = hn::Max(hn::And(hn::BitCast(kU32, a), hn::Set(kU32, 0x7f800000u)),
                                hn::Set(kU32, static_cast<uint32_t>(127 + kMinExponent) << 23));
  const auto step = hn::BitCast(
      kF32, hn::Add(exponent, hn::Set(kU32, static_cast<uint32_t>(23 - kMantissa) << 23)));
  return hn::Sub(hn::Add(a, step), step);
}

// The value of the e4m3 code nearest to v; NaN keeps its sign and loses its payload, as the code
// does.
F32Vec RoundE4m3(F32Vec v) {
  const F32Vec a = hn::Abs(v), most = hn::Set(kF32, kE4M3Max);
  const F32Vec clamped = hn::IfThenElse(hn::Gt(a, most), most, a);
  const F32Vec nan = hn::BitCast(kF32, hn::Set(kU32, 0x7fc00000u));
  return hn::CopySign(hn::IfThenElse(hn::IsNaN(v), nan, RoundMagnitude<3, -6>(clamped)), v);
}

// NaN becomes 6, as in f32_to_e2m1.
F32Vec RoundE2m1(F32Vec v) {
  const F32Vec a = hn::Abs(v), most = hn::Set(kF32, kE2M1Max);
  const F32Vec clamped = hn::IfThenElse(hn::Lt(a, most), a, most);
  const F32Vec rounded = hn::CopySign(RoundMagnitude<1, 0>(clamped), v);
  return hn::IfThenElse(hn::IsNaN(v), most, rounded);
}

// The codes of values on the e4m3 grid. Normals: the exponent field moves from bias 127 to 7.
// Subnormals: the count of 2^-9 steps, which is what the low bits of value + 2^14 hold.
U32Vec EncodeE4m3(F32Vec value) {
  const auto bits = hn::BitCast(kU32, value);
  const F32Vec a = hn::Abs(value);
  const auto normal = hn::Sub(hn::ShiftRight<20>(hn::BitCast(kU32, a)), hn::Set(kU32, 120u << 3));
  const auto tiny =
      hn::And(hn::BitCast(kU32, hn::Add(a, hn::Set(kF32, 0x1p14f))), hn::Set(kU32, 0xfu));
  const auto is_tiny = hn::RebindMask(kU32, hn::Lt(a, hn::Set(kF32, 0x1p-6f)));
  const auto is_nan = hn::RebindMask(kU32, hn::IsNaN(value));
  const auto code =
      hn::IfThenElse(is_nan, hn::Set(kU32, 0x7fu), hn::IfThenElse(is_tiny, tiny, normal));
  return hn::Or(code, hn::And(hn::ShiftRight<24>(bits), hn::Set(kU32, 0x80u)));
}

void QuantizeQ8Group(const float* x, int64_t n, uint8_t* codes, uint8_t* scale) {
  const int64_t step = lanes();
  *scale = q8_scale(AbsMax(x, n));
  const float inverse = inverse_scale(*scale);
  const F32Vec factor = hn::Set(kF32, inverse);
  int64_t i = 0;
  for (; i + step <= n; i += step) {
    const F32Vec value = RoundE4m3(hn::Mul(hn::LoadU(kF32, x + i), factor));
    hn::StoreU(hn::TruncateTo(kU8, EncodeE4m3(value)), kU8, codes + i);
  }
  for (; i < n; ++i) codes[i] = f32_to_e4m3(x[i] * inverse);
}

// The codes of values on the e2m1 grid: 2^(e-1) (1 + m/2) has the code's fields from bit 22 on; 0
// and 0.5 are mapped to the fields of 0.5 and 0.75, which are the codes of the subnormals.
U32Vec EncodeE2m1(F32Vec value) {
  const F32Vec a = hn::Abs(value), half = hn::Set(kF32, 0.5f);
  const F32Vec normal = hn::IfThenElse(hn::Lt(a, hn::Set(kF32, 1.f)), hn::MulAdd(a, half, half), a);
  const auto fields = hn::Sub(hn::BitCast(kU32, normal), hn::Set(kU32, 126u << 23));
  const auto sign = hn::And(hn::ShiftRight<28>(hn::BitCast(kU32, value)), hn::Set(kU32, 8));
  return hn::Or(hn::ShiftRight<22>(fields), sign);
}

void QuantizeQ4Group(const float* x, int64_t n, uint8_t* pairs, uint8_t* scale) {
  const int64_t step = lanes();
  *scale = q4_scale(AbsMax(x, n));
  const float inverse = inverse_scale(*scale);
  const F32Vec factor = hn::Set(kF32, inverse);
  int64_t i = 0;
  for (; i + 2 * step <= n; i += 2 * step) {
    F32Vec even, odd;
    hn::LoadInterleaved2(kF32, x + i, even, odd);
    const auto low = EncodeE2m1(RoundE2m1(hn::Mul(even, factor)));
    const auto high = EncodeE2m1(RoundE2m1(hn::Mul(odd, factor)));
    hn::StoreU(hn::TruncateTo(kU8, hn::Or(low, hn::ShiftLeft<4>(high))), kU8, pairs + i / 2);
  }
  for (; i < n; i += 2) {
    pairs[i / 2] = e2m1_pair(f32_to_e2m1(x[i] * inverse), f32_to_e2m1(x[i + 1] * inverse));
  }
}

void FakeQ8Group(const float* x, int64_t n, float* out) {
  const int64_t step = lanes();
  const uint8_t scale = q8_scale(AbsMax(x, n));
  const float inverse = inverse_scale(scale), back = ue8m0_to_f32(scale);
  const F32Vec factor = hn::Set(kF32, inverse), back_factor = hn::Set(kF32, back);
  int64_t i = 0;
  for (; i + step <= n; i += step) {
    const F32Vec value = RoundE4m3(hn::Mul(hn::LoadU(kF32, x + i), factor));
    hn::StoreU(hn::Mul(value, back_factor), kF32, out + i);
  }
  for (; i < n; ++i) out[i] = e4m3_to_f32(f32_to_e4m3(x[i] * inverse)) * back;
}

void FakeQ4Group(const float* x, int64_t n, float* out) {
  const int64_t step = lanes();
  const uint8_t scale = q4_scale(AbsMax(x, n));
  const float inverse = inverse_scale(scale), back = ue8m0_to_f32(scale);
  const F32Vec factor = hn::Set(kF32, inverse), back_factor = hn::Set(kF32, back);
  int64_t i = 0;
  for (; i + step <= n; i += step) {
    const F32Vec value = RoundE2m1(hn::Mul(hn::LoadU(kF32, x + i), factor));
    hn::StoreU(hn::Mul(value, back_factor), kF32, out + i);
  }
  for (; i < n; ++i) out[i] = e2m1_to_f32(f32_to_e2m1(x[i] * inverse)) * back;
}

void QuantizeQ8Row(const float* x, int64_t k, int64_t group, uint8_t* codes, uint8_t* scales) {
  for (int64_t i = 0; i < k; i += group) {
    QuantizeQ8Group(x + i, std::min(group, k - i), codes + i, scales++);
  }
}
void QuantizeQ4Row(const float* x, int64_t k, int64_t group, uint8_t* pairs, uint8_t* scales) {
  for (int64_t i = 0; i < k; i += group) {
    QuantizeQ4Group(x + i, std::min(group, k - i), pairs + i / 2, scales++);
  }
}
void FakeQ8Row(const float* x, int64_t k, int64_t group, float* out) {
  for (int64_t i = 0; i < k; i += group) FakeQ8Group(x + i, std::min(group, k - i), out + i);
}
void FakeQ4Row(const float* x, int64_t k, int64_t group, float* out) {
  for (int64_t i = 0; i < k; i += group) FakeQ4Group(x + i, std::min(group, k - i), out + i);
}

// (a, b) <- (a + b, a - b) for all pairs of blocks [i, i + h) and [i + h, i + 2h).
template <class D>
void Butterflies(D tag, float* x, int64_t n, int64_t h) {
  const auto step = static_cast<int64_t>(hn::Lanes(tag));
  for (int64_t block = 0; block < n; block += 2 * h) {
    for (int64_t i = block; i < block + h; i += step) {
      const auto a = hn::LoadU(tag, x + i), b = hn::LoadU(tag, x + i + h);
      hn::StoreU(hn::Add(a, b), tag, x + i);
      hn::StoreU(hn::Sub(a, b), tag, x + i + h);
    }
  }
}

// Distances 1 and 2 inside each run of four; n is a multiple of 4.
void QuadButterflies(float* x, int64_t n) {
  for (int64_t i = 0; i < n; i += 4) {
    const float a = x[i] + x[i + 1], b = x[i] - x[i + 1];
    const float c = x[i + 2] + x[i + 3], d = x[i + 2] - x[i + 3];
    x[i] = a + c, x[i + 1] = b + d, x[i + 2] = a - c, x[i + 3] = b - d;
  }
}

void HadamardRow(float* x, int64_t n) {
  int64_t h = 1;
  if (n >= 4) {
    QuadButterflies(x, n);
    h = 4;
  } else if (n == 2) {
    const float a = x[0], b = x[1];
    x[0] = a + b, x[1] = a - b;
    h = 2;
  }
  for (; h < n; h *= 2) {
    if (h >= lanes()) {
      Butterflies(kF32, x, n, h);
    } else {
      Butterflies(kQuad, x, n, h);
    }
  }
  const auto factor = static_cast<float>(1 / std::sqrt(static_cast<double>(n)));
  const int64_t step = lanes();
  int64_t i = 0;
  for (; i + step <= n; i += step) {
    hn::StoreU(hn::Mul(hn::LoadU(kF32, x + i), hn::Set(kF32, factor)), kF32, x + i);
  }
  for (; i < n; ++i) x[i] *= factor;
}

}  // namespace
}  // namespace dsv4::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace dsv4::cpu {

HWY_EXPORT(QuantizeQ8Row);
HWY_EXPORT(QuantizeQ4Row);
HWY_EXPORT(FakeQ8Row);
HWY_EXPORT(FakeQ4Row);
HWY_EXPORT(HadamardRow);

void quantize_q8_row(const float* x, int64_t k, int64_t group, uint8_t* codes, uint8_t* scales) {
  HWY_DYNAMIC_DISPATCH(QuantizeQ8Row)(x, k, group, codes, scales);
}
void quantize_q4_row(const float* x, int64_t k, int64_t group, uint8_t* pairs, uint8_t* scales) {
  HWY_DYNAMIC_DISPATCH(QuantizeQ4Row)(x, k, group, pairs, scales);
}
void fake_q8_row(const float* x, int64_t k, int64_t group, float* out) {
  HWY_DYNAMIC_DISPATCH(FakeQ8Row)(x, k, group, out);
}
void fake_q4_row(const float* x, int64_t k, int64_t group, float* out) {
  HWY_DYNAMIC_DISPATCH(FakeQ4Row)(x, k, group, out);
}
void hadamard_row(float* x, int64_t n) {
  HWY_DYNAMIC_DISPATCH(HadamardRow)(x, n);
}

}  // namespace dsv4::cpu
#endif  // HWY_ONCE
