// A product as parameters of the kernel, and the kernels by K and the type of x, which are compiled
// one by one (kbit_stream_instance.cu).

#pragma once

#include "dsv4/device/alignment.h"
#include "dsv4/formats/kbit.h"
#include "dsv4/ops/gemm/cuda/kbit_stream.h"
#include "dsv4/ops/gemm/cuda/kbit_stream/config.cuh"

namespace dsv4::gemm::kbit_stream {

template <int K, class X>
void launch_kbit_stream(Device& device, const Params& params);

// run.operator()<kTokens, kWhole>() for those of a call.
template <class Run>
void with_config(const Params& p, const Run& run) {
  if (tile_tokens(p.tokens) == 8)
    return p.whole ? run.template operator()<8, true>() : run.template operator()<8, false>();
  p.whole ? run.template operator()<16, true>() : run.template operator()<16, false>();
}

inline Params make_params(const Product& p, int num_sms) {
  const WeightView& w = p.weight;
  constexpr int64_t kPiece = 16;
  Params params;
  params.codes = reinterpret_cast<const unsigned char*>(w.data.as<uint32_t>());
  params.row_bytes = w.data.row_stride() * 4;
  params.whole = w.n % kTileRows == 0 && w.k % kUnit == 0 && rows_on(w.data, kPiece);
  params.scale = w.scale.as<uint8_t>();
  params.scale_stride = w.scale.row_stride();
  params.codebook = w.codebook.as<float>();
  params.x = p.x.as<uint16_t>();
  params.x_stride = p.x.row_stride();
  params.out = p.out.data;
  params.out_stride = p.out.row_stride();
  params.out_dtype = p.out.dtype;
  params.n = static_cast<int>(w.n);
  params.k = static_cast<int>(w.k);
  params.tokens = static_cast<int>(p.x.dim(0));
  params.scale2 = w.scale2;
  params.plan = make_plan(w.n, w.k, tile_tokens(p.x.dim(0)), num_sms);
  return params;
}

}  // namespace dsv4::gemm::kbit_stream
