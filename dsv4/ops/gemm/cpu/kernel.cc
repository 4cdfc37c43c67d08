#include "dsv4/ops/gemm/cpu/kernel.h"

#include <algorithm>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "dsv4/ops/gemm/cpu/kernel.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"

#include "dsv4/ops/gemm/cpu/tiled-inl.h"

HWY_BEFORE_NAMESPACE();
namespace dsv4::gemm::cpu::HWY_NAMESPACE {

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
      return run(Decoder<DecodeBF16>());
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

// In multiply_instance.cc, for every decoder of WithDecoder().
template <class F>
void MultiplyFormat(const Block& block);

void Multiply(const Block& block) {
  WithDecoder(*block.weights,
              [&](auto decoder) { MultiplyFormat<typename decltype(decoder)::Type>(block); });
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

}  // namespace dsv4::gemm::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace dsv4::gemm::cpu {

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

}  // namespace dsv4::gemm::cpu
#endif  // HWY_ONCE
