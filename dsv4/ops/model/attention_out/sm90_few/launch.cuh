// A call of sm90_few as parameters of the kernel of wo_a. Shared by launch.cu and the test that
// runs in the emulator.

#pragma once

#include "dsv4/ops/gemm/sm90/small_m/call.cuh"
#include "dsv4/ops/model/attention_out/attention_out.h"
#include "dsv4/ops/model/attention_out/sm90_few/config.cuh"

namespace dsv4::attention_out_kernel::sm90_few {

inline constexpr int kPairOfTiles = gemm::kScaleColumns / gemm::kTileRows;

// u = o wo_a^T, without a place for it. o: as it is, or stored in f16.
inline gemm::Product product_of_wo_a(const AttentionOutArgs& args, const gemm::Activations& o) {
  return {.in = o, .weight = args.wo_a, .groups = args.groups};
}
inline ConstTensorView rows_of_o(const AttentionOutArgs& args) {
  return args.o.reshape({args.o.dim(0), args.o.dim(1) * args.o.dim(2)});
}

struct U {
  TensorView codes, scales;  // [t, groups * r] E4M3, [t, groups * r / 128] E8M0
};

inline gemm::Product product_of_wo_b(const AttentionOutArgs& args, const U& u) {
  return {.in = {.x = u.codes, .x_scale = u.scales}, .weight = args.wo_b, .out = args.y};
}

// A place for o in f16. make: of a dtype and a shape.
template <class Make>
gemm::StoredF16 make_stored_o(const AttentionOutArgs& args, const Make& make) {
  const int64_t t = args.o.dim(0), columns = args.o.dim(1) * args.o.dim(2);
  return {.values = make(DType::kF16, {t, columns}),
          .scales = make(DType::kE8M0, {t, columns / gemm::kScaleColumns})};
}

// o in f16, in the workspace.
inline gemm::StoredF16 store_o(Device& device, const AttentionOutArgs& args) {
  const gemm::StoredF16 stored =
      make_stored_o(args, [&](DType dtype, std::initializer_list<int64_t> shape) {
        return device.workspace().take(dtype, shape);
      });
  gemm::store_f16(device, rows_of_o(args), stored);
  return stored;
}

// Both products of many tokens, with u between them: many.cu.
bool takes_many(const Context& context, int64_t tokens);
void run_many(const Context& context, const AttentionOutArgs& args, const U& u);

inline gemm::Shape shape_of_wo_a(const gemm::Product& p, bool by_columns = false) {
  gemm::Shape shape = gemm::shape_of(p.weight, p.in, p.groups, by_columns);
  shape.tiles_of_cluster = kPairOfTiles;
  return shape;
}

// codes: [t, groups * r] E4M3; scales: [t, groups * r / 128] E8M0.
template <class MakeMap>
Params make_params(const gemm::Product& p, const gemm::Split& split, int tokens,
                   const TensorView& codes, const TensorView& scales, const MakeMap& make_map) {
  Params params;
  static_cast<gemm::Params<1>&>(params) = gemm::make_params(p, split, tokens, make_map);
  params.codes = codes.as<uint8_t>();
  params.scales = scales.as<uint8_t>();
  params.rows = static_cast<int>(p.weight.n);
  return params;
}

}  // namespace dsv4::attention_out_kernel::sm90_few
