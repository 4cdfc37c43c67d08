#include "dsv4/ops/linear/linear_cuda.h"

namespace dsv4 {
namespace {

Product product_of(const LinearArgs& args) {
  const WeightView& w = args.weight;
  const int64_t n = w.n / args.groups;
  Product p{.x = args.x.data,
            .x_dtype = args.x.dtype,
            .x_stride = args.x.row_stride(),
            .x_part = w.k,
            .out = args.out.data,
            .out_is_bf16 = args.out.dtype == DType::kBF16,
            .out_stride = args.out.row_stride(),
            .n = static_cast<int>(n),
            .k = static_cast<int>(w.k),
            .parts = static_cast<int>(args.groups),
            .stack_is_part = true,
            .weight = {single(w)},
            .num_pairs = args.x.dim(0),
            .rows_per_token = static_cast<int>(w.n)};
  const bool block_rows = w.format == WeightFormat::kFp8Block;
  p.weight[0].stack_bytes = n * p.weight[0].row_bytes;
  p.weight[0].scale_stack_bytes =
      (block_rows ? n / kFp8BlockSize : n) * p.weight[0].scale_row_bytes;
  if (args.x.dtype == DType::kE4M3) {
    p.x_scale = args.x_scale.as<uint8_t>();
    p.x_scale_stride = args.x_scale.row_stride();
    p.x_scale_part = args.x_scale.dim(1) / args.groups;
  }
  return p;
}

}  // namespace

void linear_cuda(const Context& context, const LinearArgs& args) {
  Product p = product_of(args);
  p.tile_pairs = vector_tile(*context.device, p, 1);
  run_vector_product(*context.device, p);
}

namespace {

const char* reject(const Context& context, const LinearArgs& args, bool rounded) {
  if (context.numerics == Numerics::kExact) return "exact numerics";
  constexpr int64_t kFewTokens = 4;  // as fast in the vector kernels
  if (args.x.dim(0) <= kFewTokens && context.force_impl.empty()) return "few tokens";
  return reject_mma(product_of(args), rounded);
}

}  // namespace

const char* reject_linear_mma(const Context& context, const LinearArgs& args) {
  return reject(context, args, false);
}
const char* reject_linear_mma_rounded(const Context& context, const LinearArgs& args) {
  return reject(context, args, true);
}

void linear_mma(const Context& context, const LinearArgs& args) {
  Product p = product_of(args);
  const Scratch::Scope scope(context.device->workspace());
  p.tile_pairs = mma_tile(*context.device, p, 1);
  if (p.x_dtype == DType::kE4M3 && p.tile_pairs > kFewPairs) widen_activations(*context.device, p);
  run_mma_product(*context.device, p);
}

}  // namespace dsv4
