// The implementations cuda, cuda_mma and cuda_mma_rounded of linear.h: one problem for the
// quantized GEMM core, whose projections are the groups.

#include "dsv4/ops/gemm/quant_gemm/quant_gemm_cuda.h"
#include "dsv4/ops/parts/linear/linear_impls.h"

namespace dsv4 {
namespace {

quant_gemm::Problem problem_of(const LinearArgs& args) {
  const WeightView& w = args.weight;
  const int64_t n = w.n / args.groups;
  quant_gemm::Problem p{.x = args.x.data,
                        .x_dtype = args.x.dtype,
                        .x_stride = args.x.row_stride(),
                        .x_projection_stride = w.k,
                        .out = args.out.data,
                        .out_is_bf16 = args.out.dtype == DType::kBF16,
                        .out_stride = args.out.row_stride(),
                        .n = static_cast<int>(n),
                        .k = static_cast<int>(w.k),
                        .projections = static_cast<int>(args.groups),
                        .projection_is_matrix = true,
                        .weight = {quant_gemm::single_matrix(w)},
                        .m = args.x.dim(0),
                        .weight_rows_per_token = static_cast<int>(w.n)};
  const bool block_rows = w.format == WeightFormat::kFp8Block;
  p.weight[0].matrix_bytes = n * p.weight[0].row_bytes;
  p.weight[0].scale_matrix_bytes =
      (block_rows ? n / kFp8BlockSize : n) * p.weight[0].scale_row_bytes;
  if (args.x.dtype == DType::kE4M3) {
    p.x_scale = args.x_scale.as<uint8_t>();
    p.x_scale_stride = args.x_scale.row_stride();
    p.x_scale_projection_stride = args.x_scale.dim(1) / args.groups;
  }
  return p;
}

}  // namespace

void linear_cuda(const Context& context, const LinearArgs& args) {
  quant_gemm::Problem p = problem_of(args);
  p.tile_m = quant_gemm::gemv_tile(*context.device, p, 1);
  quant_gemm::run_gemv(*context.device, p);
}

namespace {

const char* reject(const Context& context, const LinearArgs& args, bool rounded) {
  if (context.numerics == Numerics::kExact) return "exact numerics";
  if (const char* why = linear_reject_quantize(context, args)) return why;
  constexpr int64_t kFewTokens = 4;  // the GEMV kernels are as fast
  if (args.x.dim(0) <= kFewTokens && context.force_impl.empty()) return "few tokens";
  return quant_gemm::reject_mma(problem_of(args), rounded);
}

}  // namespace

const char* linear_cuda_mma_reject(const Context& context, const LinearArgs& args) {
  return reject(context, args, false);
}
const char* linear_cuda_mma_rounded_reject(const Context& context, const LinearArgs& args) {
  return reject(context, args, true);
}

void linear_cuda_mma(const Context& context, const LinearArgs& args) {
  quant_gemm::Problem p = problem_of(args);
  const Scratch::Scope scope(context.device->workspace());
  p.tile_m = quant_gemm::mma_tile(*context.device, p, 1);
  if (p.x_dtype == DType::kE4M3 && p.tile_m > quant_gemm::kSmallM)
    quant_gemm::widen_activations(*context.device, p);
  quant_gemm::run_mma(*context.device, p);
}

}  // namespace dsv4
