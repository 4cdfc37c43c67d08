// Products as parameters of the kernel. `make_map` makes a tensor map of a box: the driver's, or
// the emulator's.

#pragma once

#include "dsv4/device/alignment.h"
#include "dsv4/ops/gemm/sm90/large_m/kernel.cuh"
#include "dsv4/ops/gemm/sm90/small_m/call.cuh"

namespace dsv4::gemm::large_m {

// All but the matrices. k: of one group
template <class MakeMap>
Params make_params(Format format, const Activations& in, int64_t k, int64_t groups, int rank_bits,
                   const MakeMap& make_map) {
  const int64_t item = item_bytes(in.x.dtype);
  Params p;
  p.x = make_map(tma_rows(in.x.data, in.x.dtype, in.x.dim(0), in.x.dim(1), in.x.row_stride() * item,
                          kTokens / kCtas, kSlabBytes / item, TmaSwizzle::k128));
  if (!in.x_scale.empty()) {
    p.x_scale = in.x_scale.as<uint8_t>();
    p.x_scale_stride = in.x_scale.row_stride();
  }
  p.groups = static_cast<int>(groups);
  p.tokens = static_cast<int>(in.x.dim(0));
  p.k = static_cast<int>(k);
  p.slabs = static_cast<int>(ceil_div(k, int64_t{slab_columns(format)}));
  p.rank_bits = rank_bits;
  p.token_tiles = static_cast<int>(ceil_div(p.tokens, kTokens));
  return p;
}

// The next matrix of p. out: empty where sums go to p.codes
template <class MakeMap>
void add_matrix(Params& p, int index, const WeightView& w, const TensorView& out, int64_t x_item,
                const MakeMap& make_map) {
  const int64_t item = item_bytes(w.data.dtype);
  Matrix& m = p.matrix[index];
  m.weight =
      make_map(tma_rows(w.data.data, w.data.dtype, w.n, w.data.dim(1), w.data.row_stride() * item,
                        kRows, kSlabBytes / item, TmaSwizzle::k128));
  if (!w.scale.empty()) {
    m.scale = w.scale.data;
    m.scale_stride = w.scale.row_stride();
    m.scale_is_f32 = w.scale.dtype == DType::kF32;
  }
  m.rows = static_cast<int>(w.n / p.groups);
  m.row_pairs = static_cast<int>(ceil_div(m.rows, kRows * kCtas));
  m.first_tile = p.tiles;
  p.tiles += p.groups * m.row_pairs * p.token_tiles;
  // What is larger passes by once, while the other operand of a group stays in L2.
  m.tokens_first = p.tokens * x_item < m.rows * item;
  if (out.empty()) return;
  m.out = out.data;
  m.out_stride = out.row_stride();
  m.out_is_bf16 = out.dtype == DType::kBF16;
  m.out_in_vectors = rows_on(out, 16) && m.rows % 8 == 0;
}

template <class MakeMap>
Params make_params(const Product& product, int rank_bits, const MakeMap& make_map) {
  const WeightView& w = product.weight;
  Params p =
      make_params(format_of(w, product.in), product.in, w.k, product.groups, rank_bits, make_map);
  add_matrix(p, 0, w, product.out, item_bytes(product.in.x.dtype), make_map);
  return p;
}

// Sums go to codes [t, n] E4M3 and scales [t, n / 128] E8M0 in place of product.out.
template <class MakeMap>
Params make_q8_params(const Product& product, int rank_bits, const TensorView& codes,
                      const TensorView& scales, const MakeMap& make_map) {
  Params p = make_params(product, rank_bits, make_map);
  p.codes = codes.as<uint8_t>();
  p.code_scales = scales.as<uint8_t>();
  return p;
}

// The targets that take `in`: all weights of one format, of those that take Q8 of x or of BF16.
template <class MakeMap>
Params make_target_params(std::span<const Target> targets, Format format, const Activations& in,
                          int64_t k, int rank_bits, const MakeMap& make_map) {
  Params p = make_params(format, in, k, 1, rank_bits, make_map);
  int index = 0;
  for (const Target& target : targets)
    if (TwoFormats::takes_q8(target) == (format != Format::kBf16))
      add_matrix(p, index++, target.weight, target.out, item_bytes(in.x.dtype), make_map);
  return p;
}

// CTAs of a launch.
inline int num_ctas(const Params& p, int num_sms) {
  return kCtas * std::max(1, std::min(p.tiles, num_sms / kCtas));
}

// Calls body(config) of an instance.
template <class Body>
void with_format(Format format, const Body& body) {
  if (format == Format::kBf16) return body(Config<Format::kBf16>{});
  if (format == Format::kFp8) return body(Config<Format::kFp8>{});
  body(Config<Format::kFp8Bf16>{});
}

}  // namespace dsv4::gemm::large_m
