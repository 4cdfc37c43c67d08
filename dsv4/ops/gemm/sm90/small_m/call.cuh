// Products as parameters of the kernel. `make_map` makes a tensor map of a box: the driver's, or
// the emulator's.

#pragma once

#include <algorithm>

#include "dsv4/base/bits.h"
#include "dsv4/device/tma_map.h"
#include "dsv4/formats/kbit.h"
#include "dsv4/ops/gemm/sm90/small_m.h"
#include "dsv4/ops/gemm/sm90/small_m/config.cuh"

namespace dsv4::gemm {

inline Format format_of(const WeightView& weight, const Activations& a) {
  if (weight.format == WeightFormat::kBF16) return Format::kBf16;
  const bool codes = a.quantize || a.x.dtype == DType::kE4M3;
  if (weight.format == WeightFormat::kKbit) {
    if (weight.bits == 4) return codes ? Format::kKbit4 : Format::kKbit4Bf16;
    return codes ? Format::kKbit5 : Format::kKbit5Bf16;
  }
  return codes ? Format::kFp8 : Format::kFp8Bf16;
}

// Whether the kernel converts x, which is stored in another type than it is multiplied in.
inline bool converts_x(Format format, const Activations& a) {
  return a.quantize || (converts_to_f16(format) && a.x.dtype != DType::kF16);
}

inline Shape shape_of(const WeightView& weight, const Activations& a, int64_t groups,
                      bool by_columns = false) {
  const int64_t tiles = ceil_div(weight.n / groups, kTileRows);
  const Format format = format_of(weight, a);
  return {.format = format,
          .tokens = a.x.dim(0),
          .k = weight.k,
          .tiles = groups * tiles,
          .tiles_per_group = tiles,
          .stored_x = !converts_x(format, a),
          .by_columns = by_columns};
}

// The factor of all sums of bit planes: a value of e4m3_codebook() over the e4m3 number that stands
// for it, times a block scale over the f16 number.
constexpr float plane_unit(int bits) {
  return (bits == 5 ? 8.f : 1.f) * 16;
}

// One matrix of a launch. first_tile: among the tiles of the launch. box_rows: of a copy
template <class MakeMap>
Matrix make_matrix(const WeightView& weight, const TensorView& out, int64_t groups, int first_tile,
                   const MakeMap& make_map, int box_rows = kTileRows) {
  Matrix m;
  const bool kbit = weight.format == WeightFormat::kKbit;
  const int64_t item = item_bytes(weight.data.dtype);
  const int64_t columns = kbit ? kPlaneColumns / kKbitBlock * weight.bits : kSlabBytes / item;
  m.weight = make_map(tma_rows(weight.data.data, weight.data.dtype, weight.n, weight.data.dim(1),
                               weight.data.row_stride() * item, box_rows, columns,
                               kbit ? TmaSwizzle::kNone : TmaSwizzle::k128));
  if (kbit) m.factor = plane_unit(weight.bits) * weight.scale2;
  if (!weight.scale.empty()) {
    m.scale = weight.scale.data;
    m.scale_stride = weight.scale.row_stride();
    m.scale_is_f32 = weight.scale.dtype == DType::kF32;
  }
  m.out = out.data;
  m.out_stride = out.row_stride();
  m.out_is_bf16 = out.dtype == DType::kBF16;
  m.n = static_cast<int>(weight.n / groups);
  m.first_tile = first_tile;
  m.tiles = static_cast<int>(ceil_div(m.n, kTileRows));
  return m;
}

// All but the matrices.
template <class P, class MakeMap>
void set_activations(P& params, Format format, const Activations& a, const Split& split, int64_t k,
                     int tokens, const MakeMap& make_map) {
  const int64_t item = item_bytes(a.x.dtype);
  params.tokens = static_cast<int>(a.x.dim(0));
  params.k = static_cast<int>(k);
  params.split = split;
  const bool values = converts_x(format, a);
  if (values || bits_of(format) > 0) {
    params.x_values = a.x.data;
    params.x_stride = a.x.row_stride();
  } else {
    params.x =
        make_map(tma_rows(a.x.data, a.x.dtype, a.x.dim(0), a.x.dim(1), a.x.row_stride() * item,
                          tokens, kSlabBytes / item, TmaSwizzle::k128));
  }
  if (!values && !a.x_scale.empty()) {
    params.x_scale = a.x_scale.as<uint8_t>();
    params.x_scale_stride = a.x_scale.row_stride();
  }
}

template <class MakeMap>
Params<1> make_params(const Product& p, const Split& split, int tokens, const MakeMap& make_map) {
  Params<1> params;
  set_activations(params, format_of(p.weight, p.in), p.in, split, p.weight.k, tokens, make_map);
  params.matrix[0] = make_matrix(p.weight, p.out, p.groups, 0, make_map);
  return params;
}

// Calls body(config) of an instance.
template <Format kFormat, class Body>
void with_tokens(int tokens, const Body& body) {
  if (tokens == 8) return body(Config<kFormat, 8>{});
  if (tokens == 16) return body(Config<kFormat, 16>{});
  if (tokens == 32) return body(Config<kFormat, 32>{});
  if (tokens == 48) return body(Config<kFormat, 48>{});
  body(Config<kFormat, 64>{});
}
template <Format kFormat, class Body>
void with_plane_tokens(int tokens, const Body& body) {
  if (tokens == 2) return body(Config<kFormat, 2>{});
  body(Config<kFormat, 8>{});
}
template <class Body>
void with_config(Format format, int tokens, const Body& body) {
  switch (format) {
    case Format::kFp8:
      return with_tokens<Format::kFp8>(tokens, body);
    case Format::kBf16:
      return with_tokens<Format::kBf16>(tokens, body);
    case Format::kFp8Bf16:
      return with_tokens<Format::kFp8Bf16>(tokens, body);
    case Format::kKbit4:
      return with_plane_tokens<Format::kKbit4>(tokens, body);
    case Format::kKbit4Bf16:
      return with_plane_tokens<Format::kKbit4Bf16>(tokens, body);
    case Format::kKbit5:
      return with_plane_tokens<Format::kKbit5>(tokens, body);
    case Format::kKbit5Bf16:
      return with_plane_tokens<Format::kKbit5Bf16>(tokens, body);
  }
}

// Calls body(config) of an instance for weights that take Q8 of x.
template <class Body>
void with_q8_config(Format format, int tokens, const Body& body) {
  if (format == Format::kKbit4) return with_plane_tokens<Format::kKbit4>(tokens, body);
  if (format == Format::kKbit5) return with_plane_tokens<Format::kKbit5>(tokens, body);
  with_tokens<Format::kFp8>(tokens, body);
}

// Q8, Bf16: Params, or derived from it.
template <class Q8_, class Bf16_>
struct TwoFormatsOf {
  using Q8 = Q8_;
  using Bf16 = Bf16_;
  Q8 q8;
  Bf16 bf16;
};
using TwoFormatParams = TwoFormatsOf<Params<kQ8Targets>, Params<kBf16Targets>>;

// Tokens of a CTA of BF16 weights, beside those of the others.
constexpr int bf16_tokens(int tokens) {
  return tokens < 8 ? 8 : tokens;
}

// A call as a launch.
struct TwoFormats {
  Shape q8, bf16;
  TwoSplits split;
  int tokens;  // of a CTA of the first clusters

  TwoFormats(std::span<const Target> targets, int64_t t, int64_t k, int num_sms,
             int prologue_bytes = 0, bool by_columns = false)
      : TwoFormats(shape_of(q8_format(targets), targets, t, k, prologue_bytes, by_columns),
                   shape_of(Format::kBf16, targets, t, k, prologue_bytes, by_columns), num_sms) {}
  TwoFormats(const Shape& q8_shape, const Shape& bf16_shape, int num_sms)
      : q8(q8_shape),
        bf16(bf16_shape),
        split(make_two_splits(q8, bf16, num_sms)),
        tokens(tile_tokens(q8)) {}

  int64_t ctas() const {
    return int64_t{split.q8.ranks()} * (split.q8.clusters() + split.bf16.clusters());
  }
  int64_t shared() const {
    return std::max(Layout(q8.format, tokens, split.q8).bytes,
                    Layout(Format::kBf16, bf16_tokens(tokens), split.bf16).bytes);
  }

  // The first clusters have the weights that take Q8 of x.
  static bool takes_q8(const Target& target) { return target.weight.format != WeightFormat::kBF16; }
  static Format q8_format(std::span<const Target> targets) {
    for (const Target& target : targets)
      if (takes_q8(target)) return format_of(target.weight, {.quantize = true});
    return Format::kFp8;
  }
  static Shape shape_of(Format format, std::span<const Target> targets, int64_t t, int64_t k,
                        int prologue_bytes = 0, bool by_columns = false) {
    int64_t tiles = 0;
    for (const Target& target : targets)
      if (takes_q8(target) == (format != Format::kBf16))
        tiles += ceil_div(target.weight.n, kTileRows);
    return {.format = format,
            .tokens = t,
            .k = k,
            .tiles = tiles,
            .tiles_per_group = std::max<int64_t>(1, tiles),
            .prologue_bytes = prologue_bytes,
            .stored_x = true,  // with so many tokens that it matters
            .by_columns = by_columns};
  }
};

// x: bf16; quantized: what the first clusters take. P: a TwoFormatsOf.
template <class P = TwoFormatParams, class MakeMap>
P make_two_format_params(const TwoFormats& formats, std::span<const Target> targets,
                         const ConstTensorView& x, const Activations& quantized,
                         const MakeMap& make_map) {
  P params;
  set_activations(params.q8, formats.q8.format, quantized, formats.split.q8, formats.q8.k,
                  formats.tokens, make_map);
  set_activations(params.bf16, Format::kBf16, Activations{.x = x}, formats.split.bf16,
                  formats.bf16.k, bf16_tokens(formats.tokens), make_map);
  int q8 = 0, bf16 = 0, q8_tiles = 0, bf16_tiles = 0;
  for (const Target& target : targets) {
    const bool first = TwoFormats::takes_q8(target);
    Matrix& matrix = first ? params.q8.matrix[q8++] : params.bf16.matrix[bf16++];
    int& tiles = first ? q8_tiles : bf16_tiles;
    matrix = make_matrix(target.weight, target.out, 1, tiles, make_map);
    tiles += matrix.tiles;
  }
  return params;
}

}  // namespace dsv4::gemm
