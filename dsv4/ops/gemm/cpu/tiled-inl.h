// The tiled kernel, for more than 3 tokens: a tile of rows is decoded once into the L1 cache and
// multiplied with all panels of activations, so the fused multiply-adds bound the time. The order
// of additions is the one in kernel.h.

#if defined(DSV4_OPS_GEMM_CPU_TILED_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef DSV4_OPS_GEMM_CPU_TILED_INL_H_
#undef DSV4_OPS_GEMM_CPU_TILED_INL_H_
#else
#define DSV4_OPS_GEMM_CPU_TILED_INL_H_
#endif

#include <algorithm>

#include "dsv4/ops/gemm/cpu/row_group-inl.h"

HWY_BEFORE_NAMESPACE();
namespace dsv4::gemm::cpu::HWY_NAMESPACE {

// Rows of a tile; times kPanelTokens tokens, as many accumulators as the register file holds.
constexpr int kTileRows = kLanes >= 16 ? 8 : 4;
constexpr int kPanelTokens = 3;

// A tile holds a decoded chunk of kTileRows rows, step by step: [vector][row][lane], followed by
// the scales [row][lane] where kScaleSums leaves them out of the values.
constexpr int64_t kTileFloats =
    kTileRows * (kChunk + kChunk / 16);  // steps with scales: >= 16 vectors

template <class F>
void DecodeTile(RowGroup<F, kTileRows>& group, int64_t k0, int64_t columns, float* tile) {
  float* out = tile;
  group.for_each_step(k0, columns, [&](auto vectors, const StepOf<kTileRows>& now) HWY_ATTR {
    constexpr int kCount = vectors();
#pragma GCC unroll 8
    for (int r = 0; r < kTileRows; ++r) {
      typename F::Codes codes = group.decoder.template load<kCount>(now.at[r], now.column);
#pragma GCC unroll 32
      for (int v = 0; v < kCount; ++v) {
        hn::Store(group.decoder.value(codes, v), kF32, out + (v * kTileRows + r) * kLanes);
      }
      if constexpr (F::kScaleSums) {
        hn::Store(F::template scale<kCount>(now.scale[r]), kF32,
                  out + (kCount * kTileRows + r) * kLanes);
      }
    }
    out += (kCount + F::kScaleSums) * kTileRows * kLanes;
  });
}

// One tile times one panel. Unfinished sums are kept in `sums` from one chunk to the next.
struct TileStep {
  const float* tile;
  const float* x;
  int64_t vectors;
  float* sums;  // [kTileRows, T, kLanes]
  bool first, last;
  float* out;  // [T, out_stride], at the rows of the tile
  int64_t out_stride, rows;
  float scale2;
};

// sums += `count` vectors of the tile times the panel; with kFirst, sums = instead.
template <int T, bool kFirst = false>
HWY_INLINE void AddProducts(const float* tile, const float* x, int64_t count,
                            Sums<kTileRows, T>& sums) {
  for (int64_t p = 0; p < count; ++p, tile += kTileRows * kLanes, x += T * kLanes) {
    F32Vec column[T];
#pragma GCC unroll 8
    for (int t = 0; t < T; ++t) column[t] = hn::Load(kF32, x + t * kLanes);
#pragma GCC unroll 8
    for (int r = 0; r < kTileRows; ++r) {
      F32Vec value = hn::Load(kF32, tile + r * kLanes);
      KeepInRegister(value);
#pragma GCC unroll 8
      for (int t = 0; t < T; ++t) {
        sums.v[r][t] =
            kFirst ? hn::Mul(column[t], value) : hn::MulAdd(column[t], value, sums.v[r][t]);
      }
    }
  }
}

// sums += the sums of each step times their scales.
template <int T>
HWY_INLINE void AddScaledProducts(const float* tile, const float* x, int64_t vectors,
                                  int64_t step_vectors, Sums<kTileRows, T>& sums) {
  for (int64_t p = 0; p < vectors; p += step_vectors) {
    const int64_t count = std::min(step_vectors, vectors - p);
    Sums<kTileRows, T> step;
    AddProducts<T, true>(tile, x + p * T * kLanes, 1, step);
    AddProducts<T>(tile + kTileRows * kLanes, x + (p + 1) * T * kLanes, count - 1, step);
    tile += count * kTileRows * kLanes;
#pragma GCC unroll 8
    for (int r = 0; r < kTileRows; ++r) {
      F32Vec scale = hn::Load(kF32, tile + r * kLanes);
      KeepInRegister(scale);
#pragma GCC unroll 8
      for (int t = 0; t < T; ++t) sums.v[r][t] = hn::MulAdd(step.v[r][t], scale, sums.v[r][t]);
    }
    tile += kTileRows * kLanes;
  }
}

template <class F, int T>
void TileTimesPanel(const TileStep& step) {
  Sums<kTileRows, T> sums;
  if (!step.first) {
#pragma GCC unroll 8
    for (int r = 0; r < kTileRows; ++r) {
#pragma GCC unroll 8
      for (int t = 0; t < T; ++t) sums.v[r][t] = hn::Load(kF32, step.sums + (r * T + t) * kLanes);
    }
  }
  if constexpr (F::kScaleSums) {
    AddScaledProducts<T>(step.tile, step.x, step.vectors, F::kVectors, sums);
  } else {
    AddProducts<T>(step.tile, step.x, step.vectors, sums);
  }
  if (!step.last) {
#pragma GCC unroll 8
    for (int r = 0; r < kTileRows; ++r) {
#pragma GCC unroll 8
      for (int t = 0; t < T; ++t) hn::Store(sums.v[r][t], kF32, step.sums + (r * T + t) * kLanes);
    }
    return;
  }
#pragma GCC unroll 8
  for (int t = 0; t < T; ++t) {
    float y[kTileRows];
#pragma GCC unroll 8
    for (int r = 0; r < kTileRows; r += 4) {
      Finish(sums.v[r][t], sums.v[r + 1][t], sums.v[r + 2][t], sums.v[r + 3][t], step.scale2,
             y + r);
    }
    float* out = step.out + t * step.out_stride;
    if (step.rows == kTileRows) {
      std::copy_n(y, kTileRows, out);
    } else {
      for (int64_t r = 0; r < step.rows; ++r) out[r] = y[r];
    }
  }
}

// NaN codes of FP8 decode to numbers in a tile; the outputs of rows that hold one are overwritten
// at the end.
inline void PatchNanRows(const Block& block) {
  const Weights& w = *block.weights;
  for (int64_t r = 0; r < block.rows; ++r) {
    const uint8_t* data = w.row(block.row + r);
    if (std::none_of(data, data + w.k, IsNanCode)) continue;
    for (int64_t t = 0; t < block.tokens; ++t) block.out[t * block.rows + r] = e4m3_to_f32(0x7f);
  }
}

template <class F>
void Tiled(const Block& block) {
  const Weights& w = *block.weights;
  const F decoder(w);
  const int64_t padded = PaddedColumns<F>(w.k), end = block.row + block.rows;
  const int64_t num_panels = (block.tokens + kPanelTokens - 1) / kPanelTokens;
  constexpr int64_t kSumFloats = int64_t{kTileRows} * kPanelTokens * kLanes;
  float* const tile = block.scratch;
  bool has_nan = false;
  for (int64_t k0 = 0; k0 == 0 || k0 < w.k; k0 += kChunk) {
    const int64_t columns = std::min(kChunk, w.k - k0);
    float* sums = tile + kTileFloats;
    for (int64_t row = block.row; row < end; row += kTileRows) {
      RowGroup<F, kTileRows> group(w, decoder, row, 1, end, kTileRows * w.row_bytes);
      DecodeTile(group, k0, columns, tile);
      has_nan |= group.decoder.seen_nan();
      TileStep step{.tile = tile,
                    .vectors = PaddedColumns<F>(columns) / kLanes,
                    .first = k0 == 0,
                    .last = k0 + kChunk >= w.k,
                    .out_stride = block.rows,
                    .rows = std::min<int64_t>(kTileRows, end - row),
                    .scale2 = w.scale2};
      for (int64_t p = 0; p < num_panels; ++p, sums += kSumFloats) {
        const int64_t token = p * kPanelTokens,
                      width = std::min<int64_t>(kPanelTokens, block.tokens - token);
        step.x = block.panels + token * padded + k0 * width;
        step.sums = sums;
        step.out = block.out + token * block.rows + (row - block.row);
        const auto run = width == 3   ? TileTimesPanel<F, 3>
                         : width == 2 ? TileTimesPanel<F, 2>
                                      : TileTimesPanel<F, 1>;
        run(step);
      }
    }
  }
  if (has_nan) PatchNanRows(block);
}

}  // namespace dsv4::gemm::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // DSV4_OPS_GEMM_CPU_TILED_INL_H_
