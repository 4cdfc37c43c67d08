// A group of weight rows walked side by side, and the end of their products. Included once per
// Highway target by the kernels of linear_kernel.cc.

#if defined(DSV4_OPS_LINEAR_ROW_GROUP_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef DSV4_OPS_LINEAR_ROW_GROUP_INL_H_
#undef DSV4_OPS_LINEAR_ROW_GROUP_INL_H_
#else
#define DSV4_OPS_LINEAR_ROW_GROUP_INL_H_
#endif

#include <algorithm>
#include <cmath>
#include <cstring>

#include "dsv4/ops/linear/weight_decode-inl.h"

HWY_BEFORE_NAMESPACE();
namespace dsv4::linear_kernel::HWY_NAMESPACE {

// Columns between two visits of a row group. A tile of kTileRows x kChunk floats fills most of the
// L1 cache; shorter chunks fit better but carry the sums through the L2 cache more often, which
// costs more.
constexpr int64_t kChunk = 1024;
constexpr int64_t kScalesAhead = 512;  // bytes

inline bool IsNanCode(uint8_t e4m3) {
  return (e4m3 & 0x7f) == 0x7f;
}

// Rows first, first + stride, ... of a weight; those past the end repeat the last one.
template <class F, int R>
struct RowGroup {
  static constexpr int64_t kStep = F::kVectors * kLanes;  // columns decoded at once
  static constexpr int64_t kStepBytes = kStep * F::kBits / 8;
  static constexpr int64_t kNumScales = F::kGroup == 0 ? 1 : kChunk / std::max(F::kGroup, 1) + 1;
  // The scales of an fp8 block serve all rows of a group (see Block).
  static constexpr int kScaleRows = F::kGroup == kFp8BlockSize ? 1 : R;

  const Weights& w;
  const int64_t ahead_bytes;  // distance of prefetches
  int64_t n[R];
  const uint8_t* data[R];
  float scales[kScaleRows][kNumScales] = {};
  typename F::Watch watch;

  RowGroup(const Weights& weights, int64_t first, int64_t stride, int64_t end, int64_t ahead)
      : w(weights), ahead_bytes(ahead) {
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      n[r] = std::min(first + r * stride, end - 1);
      data[r] = w.row(n[r]);
    }
  }

  // Calls step(s, row pointers) for steps s = 0, 1, ... of columns [k0, k0 + columns).
  template <class Step>
  HWY_INLINE void for_each_step(int64_t k0, int64_t columns, const Step& step) {
    load_scales(k0, columns);
    const uint8_t* at[R];
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) at[r] = data[r] + k0 * F::kBits / 8;
    int64_t s = 0;
    for (; (s + 1) * kStep <= columns; ++s) {
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) __builtin_prefetch(at[r] + ahead_bytes);
      step(s, at);
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) at[r] += kStepBytes;
    }
    const auto ragged = static_cast<size_t>(columns) % kStep;
    if (ragged == 0) return;
    // The ragged end: zero codes are zero weights in every format.
    uint8_t tail[R][kStepBytes] = {};
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      std::memcpy(tail[r], at[r], ragged * F::kBits / 8);
      at[r] = tail[r];
    }
    step(s, at);
  }

  HWY_INLINE void decode(int r, int64_t s, const uint8_t* at, F32Vec* out) {
    if constexpr (F::kGroup == 0) {
      F::Decode(at, nullptr, watch, out);
    } else {
      F::Decode(at, scales[std::min(r, kScaleRows - 1)] + s * kStep / F::kGroup, watch, out);
    }
  }

  bool has_nan_code(int r) const {
    return std::any_of(data[r], data[r] + w.k, IsNanCode);
  }

 private:
  void load_scales(int64_t k0, int64_t columns) {
    if constexpr (F::kGroup != 0) {
      const int64_t count = (columns + F::kGroup - 1) / F::kGroup;
      for (int r = 0; r < kScaleRows; ++r) {
        __builtin_prefetch(w.scale + n[r] * w.scale_row_bytes + k0 / F::kGroup + kScalesAhead);
        F::Scales(w, n[r], k0 / F::kGroup, count, scales[r]);
        scales[r][count] = 0;  // the second half of a ragged step
      }
    }
  }
};

#if HWY_TARGET != HWY_SCALAR
const hn::Simd<float, 4, 0> kF32x4;
using Quad = hn::Vec<decltype(kF32x4)>;

// Adds halves until four lanes are left.
template <class V>
HWY_INLINE Quad ToQuad(V v) {
  if constexpr (hn::MaxLanes(hn::DFromV<V>()) == 4) {
    return v;
  } else {
    const hn::Half<hn::DFromV<V>> half;
    return ToQuad(hn::Add(hn::LowerHalf(half, v), hn::UpperHalf(half, v)));
  }
}
#endif

// The results of four rows: lanes added by halves, the same tree for each row. y: [4]
HWY_INLINE void Finish(F32Vec a, F32Vec b, F32Vec c, F32Vec d, float scale2, float* y) {
#if HWY_TARGET == HWY_SCALAR
  const F32Vec sums[4] = {a, b, c, d};
  for (int i = 0; i < 4; ++i) {
    const float value = hn::GetLane(sums[i]) * scale2;
    y[i] = std::isnan(value) ? e4m3_to_f32(0x7f) : value;
  }
#else
  const Quad p = ToQuad(a), q = ToQuad(b), r = ToQuad(c), s = ToQuad(d);
  // [p0 + p2, q0 + q2, p1 + p3, q1 + q3]
  const Quad pq = hn::Add(hn::InterleaveLower(kF32x4, p, q), hn::InterleaveUpper(kF32x4, p, q));
  const Quad rs = hn::Add(hn::InterleaveLower(kF32x4, r, s), hn::InterleaveUpper(kF32x4, r, s));
  const Quad sums =
      hn::Add(hn::ConcatLowerLower(kF32x4, rs, pq), hn::ConcatUpperUpper(kF32x4, rs, pq));
  const Quad values = hn::Mul(sums, hn::Set(kF32x4, scale2));
  const Quad nan = hn::Set(kF32x4, e4m3_to_f32(0x7f));
  hn::StoreU(hn::IfThenElse(hn::IsNaN(values), nan, values), kF32x4, y);
#endif
}

}  // namespace dsv4::linear_kernel::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // DSV4_OPS_LINEAR_ROW_GROUP_INL_H_
