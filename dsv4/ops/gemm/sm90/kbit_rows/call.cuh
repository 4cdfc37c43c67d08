// A product as parameters of the kernel, and the kernels by K and the type of x, which are compiled
// one by one (sm90/instances/kbit_rows_instance.cu). `make_map` makes a tensor map of a box: the
// driver's, or the emulator's.

#pragma once

#include <cstdlib>

#include "dsv4/device/tma_map.h"
#include "dsv4/formats/kbit.h"
#include "dsv4/ops/gemm/sm90/kbit_rows.h"
#include "dsv4/ops/gemm/sm90/kbit_rows/config.cuh"

namespace dsv4::gemm::kbit_rows {

template <int K, class X>
void launch_kbit_rows(Device& device, const Params& params);

inline Shape shape_of(const Product& p) {
  return {.bits = p.weight.bits, .n = p.weight.n, .k = p.weight.k, .tokens = p.x.dim(0)};
}

template <class MakeMap>
Params make_params(const Product& p, const Plan& plan, const MakeMap& make_map) {
  const WeightView& w = p.weight;
  Params params;
  params.weight = make_map(
      tma_rows(w.data.data, w.data.dtype, w.n, w.data.dim(1), w.data.row_stride() * 4, plan.rows,
               plan.stage_units * kUnit / kKbitBlock * w.bits, TmaSwizzle::kNone));
  params.scale = w.scale.as<uint8_t>();
  params.scale_stride = w.scale.row_stride();
  params.codebook = w.codebook.as<float>();
  params.x = p.x.data;
  params.x_stride = p.x.row_stride();
  params.out = p.out.data;
  params.out_stride = p.out.row_stride();
  params.out_dtype = p.out.dtype;
  params.n = static_cast<int>(w.n);
  params.k = static_cast<int>(w.k);
  params.tokens = static_cast<int>(p.x.dim(0));
  params.scale2 = w.scale2;
  params.plan = plan;
  if (const char* t = std::getenv("KBIT_TUNE")) params.tune = std::atoi(t);
  return params;
}

}  // namespace dsv4::gemm::kbit_rows
