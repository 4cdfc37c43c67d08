#include "dsv4/ops/linear/linear_kernel.h"

#include <algorithm>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "dsv4/ops/linear/linear_kernel.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"

#include "dsv4/ops/linear/row_group-inl.h"

HWY_BEFORE_NAMESPACE();
namespace dsv4::linear_kernel::HWY_NAMESPACE {

// Rows that run side by side. Fused: enough chains of fused multiply-adds to hide their latency.
// Tiled: with kPanelTokens tokens as many accumulators as the register file holds.
constexpr int kFusedRows = 4;
constexpr int kTileRows = kLanes >= 16 ? 8 : 4;
constexpr int kPanelTokens = 3;
// Bytes between a load and the prefetch that runs ahead of it in the same stream.
constexpr int64_t kStreamAhead = 1024;
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

// sums += a step of kStepRows rows from row r on, in turns: the additions of one row and token have
// to wait for each other. All in registers, hence the unrolling.
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

// T tokens against rows first, first + stride, ...: weights go from memory to registers to the
// sums.
template <class F, int T>
void FusedRows(const Block& block, const F& decoder, int64_t first, int64_t stride) {
  const Weights& w = *block.weights;
  RowGroup<F, kFusedRows> group(w, decoder, block.row + first, stride, block.row + block.rows,
                                kStreamAhead);
  // As many rows in turns as have their codes in registers; several tokens are turns enough.
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

// The block is cut into kFusedRows runs of rows, and one row of each run goes together: every run
// is one long stream through memory. Neighbouring rows side by side would share a page, and the
// hardware prefetcher follows one stream a page.
template <class F, int T>
void Fused(const Block& block) {
  const F decoder(*block.weights);
  const int64_t stride = (block.rows + kFusedRows - 1) / kFusedRows;
  for (int64_t first = 0; first < stride; ++first) FusedRows<F, T>(block, decoder, first, stride);
}

// A tile: kTileRows rows x a chunk, decoded. One step after the other: [vector][row][lane], and
// then, if they are not in the values, the scales [row][lane].
constexpr int64_t kTileFloats = kTileRows * (kChunk + kChunk / 16);  // such steps: >= 16 vectors

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

// What one tile does to one panel. The sums of unfinished products wait in `sums` between chunks.
struct TileStep {
  const float* tile;
  const float* x;
  int64_t vectors;
  float* sums;  // [kTileRows, T, kLanes]
  bool first, last;
  float* out;  // [T, out_stride], the rows of the tile
  int64_t out_stride, rows;
  float scale2;
};

// sums += `count` vectors of the tile times the panel; with kFirst the sums begin here.
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

// Each step's sums by themselves, times their scales.
template <int T>
HWY_INLINE void AddScaledProducts(const float* tile, const float* x, int64_t vectors,
                                  int64_t step_vectors, Sums<kTileRows, T>& sums) {
  for (int64_t p = 0; p < vectors; p += step_vectors) {
    const int64_t count = std::min(step_vectors, vectors - p);
    Sums<kTileRows, T> part;
    AddProducts<T, true>(tile, x + p * T * kLanes, 1, part);
    AddProducts<T>(tile + kTileRows * kLanes, x + (p + 1) * T * kLanes, count - 1, part);
    tile += count * kTileRows * kLanes;
#pragma GCC unroll 8
    for (int r = 0; r < kTileRows; ++r) {
      F32Vec scale = hn::Load(kF32, tile + r * kLanes);
      KeepInRegister(scale);
#pragma GCC unroll 8
      for (int t = 0; t < T; ++t) sums.v[r][t] = hn::MulAdd(part.v[r][t], scale, sums.v[r][t]);
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

// NaN codes of fp8 decode to numbers in a tile; rows that hold one are overwritten at the end.
void PatchNanRows(const Block& block) {
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

template <class F>
void MultiplyFormat(const Block& block) {
  switch (block.tokens) {
    case 1:
      return Fused<F, 1>(block);
    case 2:
      return Fused<F, 2>(block);
    case 3:
      return Fused<F, 3>(block);
    default:
      return Tiled<F>(block);
  }
}

// Calls run(Decoder<F>) with the decoder of the weights.
template <class F>
struct Decoder {
  using Type = F;
};
template <class Run>
auto WithDecoder(const Weights& w, const Run& run) {
  switch (w.format) {
    case WeightFormat::kF32:
      return run(Decoder<DecodeF32>());
    case WeightFormat::kBF16:
      return run(Decoder<DecodeBf16>());
    case WeightFormat::kF16:
      return run(Decoder<DecodeF16>());
    case WeightFormat::kFp8Block:
      return run(Decoder<DecodeFp8>());
    case WeightFormat::kMxfp4:
      return run(Decoder<DecodeMxfp4>());
    case WeightFormat::kNvfp4:
      return run(Decoder<DecodeNvfp4>());
    case WeightFormat::kKbit:
      break;
  }
  switch (w.bits) {
    case 2:
      return run(Decoder<DecodeKbit<2>>());
    case 3:
      return run(Decoder<DecodeKbit<3>>());
    case 4:
      return run(Decoder<DecodeKbit<4>>());
    default:
      return run(Decoder<DecodeKbit<5>>());
  }
}

void Multiply(const Block& block) {
  WithDecoder(*block.weights,
              [&](auto decoder) { MultiplyFormat<typename decltype(decoder)::Type>(block); });
}

int64_t Padded(const Weights& w) {
  return WithDecoder(
      w, [&](auto decoder) { return PaddedColumns<typename decltype(decoder)::Type>(w.k); });
}

int64_t PanelTokens() {
  return kPanelTokens;
}

int64_t ScratchFloats(const Weights& w, int64_t rows, int64_t tokens) {
  if (tokens <= kPanelTokens) return 0;
  const int64_t groups = (rows + kTileRows - 1) / kTileRows;
  const int64_t panels = (tokens + kPanelTokens - 1) / kPanelTokens;
  const int64_t sums = w.k > kChunk ? groups * panels * kTileRows * kPanelTokens * kLanes : 0;
  return kTileFloats + sums;
}

// x[first], x[first + 2], ...
template <int first>
F32Vec Every2nd(const float* x) {
#if HWY_TARGET == HWY_SCALAR
  return hn::Set(kF32, x[first]);
#else
  const F32Vec low = hn::LoadU(kF32, x), high = hn::LoadU(kF32, x + kLanes);
  return first == 0 ? hn::ConcatEven(kF32, high, low) : hn::ConcatOdd(kF32, high, low);
#endif
}

// The order of one decoder's vectors. put(F32Vec) takes them in turn.
template <class F, class Put>
void PackRow(const float* x, int64_t padded, const Put& put) {
  if constexpr (F::kScaleSums) {  // lane l of vector v: column count * l + v of a step
    const auto lane = hn::Iota(hn::RebindToSigned<decltype(kF32)>(), 0);
    for (int64_t i = 0; i < padded;) {
      const int count = static_cast<int>(std::min<int64_t>(F::kVectors, (padded - i) / kLanes));
      const auto index = hn::Mul(lane, hn::Set(hn::DFromV<decltype(lane)>(), count));
      for (int v = 0; v < count; ++v) put(hn::GatherIndex(kF32, x + i + v, index));
      i += int64_t{count} * kLanes;
    }
  } else if constexpr (F::kBlock == 1 || kLanes == 1) {
    for (int64_t i = 0; i < padded; i += kLanes) put(hn::LoadU(kF32, x + i));
  } else {
    constexpr int kPairs = F::kBlock / (2 * kLanes);  // pairs of vectors in a block
    for (int64_t i = 0; i < padded; i += F::kBlock) {
      for (int p = 0; p < kPairs; ++p) put(Every2nd<0>(x + i + 2 * p * kLanes));
      for (int p = 0; p < kPairs; ++p) put(Every2nd<1>(x + i + 2 * p * kLanes));
    }
  }
}

void Pack(const Weights& w, const float* x, const Panel& panel, int64_t slot) {
  float* out = panel.data + slot * kLanes;
  WithDecoder(w, [&](auto decoder) HWY_ATTR {
    using F = typename decltype(decoder)::Type;
    PackRow<F>(x, PaddedColumns<F>(w.k), [&](F32Vec v) HWY_ATTR {
      hn::Store(v, kF32, out);
      out += panel.width * kLanes;
    });
  });
}

}  // namespace dsv4::linear_kernel::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace dsv4::linear_kernel {

HWY_EXPORT(PanelTokens);
HWY_EXPORT(Padded);
HWY_EXPORT(ScratchFloats);
HWY_EXPORT(Pack);
HWY_EXPORT(Multiply);

Weights::Weights(const WeightView& view)
    : format(view.format),
      n(view.n),
      k(view.k),
      data(reinterpret_cast<const uint8_t*>(view.data.data)),
      row_bytes(view.data.row_stride() * item_bytes(view.data.dtype)),
      scale(reinterpret_cast<const uint8_t*>(view.scale.data)),
      scale_row_bytes(view.scale.row_stride() * item_bytes(view.scale.dtype)),
      scale_is_f32(view.scale.dtype == DType::kF32),
      scale2(view.format == WeightFormat::kNvfp4 || view.format == WeightFormat::kKbit ? view.scale2
                                                                                       : 1.f),
      bits(view.bits),
      codebook(reinterpret_cast<const float*>(view.codebook.data)) {
}

int64_t panel_tokens() {
  return HWY_DYNAMIC_DISPATCH(PanelTokens)();
}
int64_t padded_columns(const Weights& weights) {
  return HWY_DYNAMIC_DISPATCH(Padded)(weights);
}
int64_t scratch_floats(const Weights& weights, int64_t rows, int64_t tokens) {
  return HWY_DYNAMIC_DISPATCH(ScratchFloats)(weights, rows, tokens);
}
void pack(const Weights& weights, const float* x, const Panel& panel, int64_t slot) {
  HWY_DYNAMIC_DISPATCH(Pack)(weights, x, panel, slot);
}
void multiply(const Block& block) {
  HWY_DYNAMIC_DISPATCH(Multiply)(block);
}

}  // namespace dsv4::linear_kernel
#endif  // HWY_ONCE
