// The fused kernel, for up to 3 tokens: weights are decoded in registers and multiplied at once, so
// reading them from memory bounds the time. The order of additions is the one in kernel.h.

#if defined(DSV4_OPS_GEMM_CPU_FUSED_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef DSV4_OPS_GEMM_CPU_FUSED_INL_H_
#undef DSV4_OPS_GEMM_CPU_FUSED_INL_H_
#else
#define DSV4_OPS_GEMM_CPU_FUSED_INL_H_
#endif

#include <algorithm>

#include "dsv4/ops/gemm/cpu/row_group-inl.h"

HWY_BEFORE_NAMESPACE();
namespace dsv4::gemm::cpu::HWY_NAMESPACE {

// Rows computed side by side: enough chains of fused multiply-adds to hide their latency.
constexpr int kFusedRows = 4;
// Bytes between a load and the prefetch that runs ahead of it in the same stream.
constexpr int64_t kStreamAhead = 1024;

// sums += one step of kStepRows rows from row r on, interleaved, because the additions of one row
// and token depend on each other. Everything stays in registers, which is why the loops are
// unrolled.
template <class F, int T, int kStepRows, int kCount>
HWY_INLINE void AddRows(F& decoder, const StepOf<kFusedRows>& now, int r, const float* x,
                        Sums<kFusedRows, T>& sums) {
  typename F::Codes codes[kStepRows];
  F32Vec sum[kStepRows][T];
#pragma GCC unroll 8
  for (int i = 0; i < kStepRows; ++i) {
    codes[i] = decoder.template load<kCount>(now.at[r + i], now.column);
#pragma GCC unroll 8
    for (int t = 0; t < T; ++t) sum[i][t] = sums.v[r + i][t];
  }
#pragma GCC unroll 32
  for (int v = 0; v < kCount; ++v) {
    F32Vec value[kStepRows];
#pragma GCC unroll 8
    for (int i = 0; i < kStepRows; ++i) value[i] = decoder.value(codes[i], v);
#pragma GCC unroll 8
    for (int t = 0; t < T; ++t) {
      F32Vec column = hn::Load(kF32, x + (v * T + t) * kLanes);
      if (kStepRows > 1) KeepInRegister(column);
#pragma GCC unroll 8
      for (int i = 0; i < kStepRows; ++i) {
        const bool first = F::kScaleSums && v == 0;
        sum[i][t] = first ? hn::Mul(column, value[i]) : hn::MulAdd(column, value[i], sum[i][t]);
      }
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < kStepRows; ++i) {
    F32Vec scale = hn::Zero(kF32);
    if constexpr (F::kScaleSums) scale = F::template scale<kCount>(now.scale[r + i]);
#pragma GCC unroll 8
    for (int t = 0; t < T; ++t) {
      F32Vec& total = sums.v[r + i][t];
      total = F::kScaleSums ? hn::MulAdd(sum[i][t], scale, total) : sum[i][t];
    }
  }
}

// T tokens times rows first, first + stride, ... of the block.
template <class F, int T>
void FusedRows(const Block& block, const F& decoder, int64_t first, int64_t stride) {
  const Weights& w = *block.weights;
  RowGroup<F, kFusedRows> group(w, decoder, block.row + first, stride, block.row + block.rows,
                                kStreamAhead);
  // Interleaves as many rows as have their codes in registers; several tokens need no more.
  constexpr int kStepRows = T > 1 ? 1 : sizeof(typename F::Codes) <= 4 * sizeof(F32Vec) ? 4 : 2;
  Sums<kFusedRows, T> sums;
  for (int64_t k0 = 0; k0 < w.k; k0 += kChunk) {
    const float* x = block.panels + k0 * T;
    const auto add = [&](auto vectors, const StepOf<kFusedRows>& now) HWY_ATTR {
#pragma GCC unroll 8
      for (int r = 0; r < kFusedRows; r += kStepRows) {
        AddRows<F, T, kStepRows, vectors()>(group.decoder, now, r, x + now.column * T, sums);
      }
    };
    group.for_each_step(k0, std::min(kChunk, w.k - k0), add);
  }
  const bool seen_nan = group.decoder.seen_nan();
#pragma GCC unroll 8
  for (int t = 0; t < T; ++t) {
    float y[kFusedRows];
    Finish(sums.v[0][t], sums.v[1][t], sums.v[2][t], sums.v[3][t], w.scale2, y);
    for (int r = 0; r < kFusedRows && first + r * stride < block.rows; ++r) {
      const bool nan = seen_nan && group.has_nan_code(r);
      block.out[t * block.rows + first + r * stride] = nan ? e4m3_to_f32(0x7f) : y[r];
    }
  }
}

// Splits the block into kFusedRows runs of rows and computes one row of each run at a time, so
// every run is one long stream through memory. Neighboring rows would share a page, and the
// hardware prefetcher follows one stream per page.
template <class F, int T>
void Fused(const Block& block) {
  const F decoder(*block.weights);
  const int64_t stride = (block.rows + kFusedRows - 1) / kFusedRows;
  for (int64_t first = 0; first < stride; ++first) FusedRows<F, T>(block, decoder, first, stride);
}

}  // namespace dsv4::gemm::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // DSV4_OPS_GEMM_CPU_FUSED_INL_H_
