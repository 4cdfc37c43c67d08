// A group of weight rows traversed side by side, and the sums of their products with activations.
// Included once per Highway target by the kernels fused-inl.h and tiled-inl.h.

#if defined(DSV4_OPS_GEMM_CPU_ROW_GROUP_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef DSV4_OPS_GEMM_CPU_ROW_GROUP_INL_H_
#undef DSV4_OPS_GEMM_CPU_ROW_GROUP_INL_H_
#else
#define DSV4_OPS_GEMM_CPU_ROW_GROUP_INL_H_
#endif

#include <algorithm>
#include <cmath>
#include <cstring>

#include "dsv4/ops/gemm/weights/cpu_block_decode-inl.h"

HWY_BEFORE_NAMESPACE();
namespace dsv4::gemm::cpu::HWY_NAMESPACE {

constexpr int64_t kScalesAhead = 512;  // bytes

inline bool IsNanCode(uint8_t e4m3) {
  return (e4m3 & 0x7f) == 0x7f;
}

// Columns of packed activations for k columns of a weight.
template <class F>
constexpr int64_t PaddedColumns(int64_t k) {
  constexpr int64_t kStep = F::kVectors * kLanes, kHalfStep = F::kHalfVectors * kLanes;
  const int64_t left = k % kStep;
  return k - left + (left == 0 ? 0 : left <= kHalfStep ? kHalfStep : kStep);
}

// The position of one step of a group.
template <int R>
struct StepOf {
  int64_t column;  // in packed order, from the start of the chunk
  const uint8_t* at[R];
  const uint8_t* scale[R];
};

template <int kCount>
using Vectors = std::integral_constant<int, kCount>;

// Rows first, first + stride, ... of a weight; those past the end repeat the last one.
template <class F, int R>
struct RowGroup {
  static constexpr int64_t kStep = F::kVectors * kLanes;  // columns decoded at once
  static constexpr int64_t kHalfStep = F::kHalfVectors * kLanes;
  static constexpr int64_t kStepBytes = kStep * F::kBits / 8;
  static constexpr int64_t kStepScales = F::kScaleSums ? kStep / F::kGroup : 0;

  const Weights& w;
  F decoder;
  const int64_t ahead_bytes;  // prefetch distance
  int64_t n[R];
  const uint8_t* data[R];

  RowGroup(const Weights& weights, const F& f, int64_t first, int64_t stride, int64_t end,
           int64_t ahead)
      : w(weights), decoder(f), ahead_bytes(ahead) {
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      n[r] = std::min(first + r * stride, end - 1);
      data[r] = w.row(n[r]);
    }
  }

  // Calls step(Vectors<c>, StepOf<R>) for each step of columns [k0, k0 + columns): c is
  // F::kVectors, or F::kHalfVectors for a remainder that is no longer than a half step.
  template <class Step>
  HWY_INLINE void for_each_step(int64_t k0, int64_t columns, const Step& step) {
    decoder.begin_chunk(w, n[0], k0, columns);
    StepOf<R> now{};
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      now.at[r] = data[r] + k0 * F::kBits / 8;
      if constexpr (F::kScaleSums) {
        now.scale[r] = w.scale + n[r] * w.scale_row_bytes + k0 / F::kGroup;
      }
    }
    for (; now.column + kStep <= columns; now.column += kStep) {
      prefetch(now);
      step(Vectors<F::kVectors>(), now);
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) now.at[r] += kStepBytes, now.scale[r] += kStepScales;
    }
    const auto left = static_cast<size_t>(columns) % kStep;
    if (left == 0) return;
    Tail tail;
    if (left != kHalfStep) tail.take(now, left);
    if constexpr (kHalfStep > 0) {
      if (left <= kHalfStep) return step(Vectors<F::kHalfVectors>(), now);
    }
    step(Vectors<F::kVectors>(), now);
  }

  bool has_nan_code(int r) const {
    return std::any_of(data[r], data[r] + w.k, IsNanCode);
  }

 private:
  // The ragged end of the rows, padded with zeros, as the activations are.
  struct Tail {
    uint8_t bytes[R][kStepBytes];
    uint8_t scales[R][kStepScales + 1];

    void take(StepOf<R>& now, size_t columns) {
      std::memset(this, 0, sizeof(*this));
      for (int r = 0; r < R; ++r) {
        std::memcpy(bytes[r], now.at[r], columns * F::kBits / 8);
        now.at[r] = bytes[r];
        if constexpr (F::kScaleSums) {
          std::memcpy(scales[r], now.scale[r], columns / F::kGroup);
          now.scale[r] = scales[r];
        }
      }
    }
  };

  HWY_INLINE void prefetch(const StepOf<R>& now) const {
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
      for (int64_t line = 0; line < kStepBytes; line += 64) {
        __builtin_prefetch(now.at[r] + ahead_bytes + line);
      }
      if constexpr (F::kScaleSums) __builtin_prefetch(now.scale[r] + kScalesAhead);
    }
  }
};

// GCC would rather repeat a load as the memory operand of every use, which makes loads the limit.
HWY_INLINE void KeepInRegister([[maybe_unused]] F32Vec& v) {
#if HWY_COMPILER_GCC_ACTUAL && HWY_ARCH_X86
  asm("" : "+v"(v.raw));
#endif
}

template <int R, int T>
struct Sums {
  F32Vec v[R][T];

  HWY_INLINE Sums() {
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
      for (int t = 0; t < T; ++t) v[r][t] = hn::Zero(kF32);
    }
  }
};

#if HWY_TARGET != HWY_SCALAR
const hn::Simd<float, 4, 0> kF32x4;
using Quad = hn::Vec<decltype(kF32x4)>;

// Adds the upper half to the lower half until four lanes are left.
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

// The results of four rows: the lanes of each row added by the same tree. y: [4]
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

}  // namespace dsv4::gemm::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // DSV4_OPS_GEMM_CPU_ROW_GROUP_INL_H_
