// The implementations cuda and cuda_mma of linear.h: one problem for the portable CUDA kernels of
// gemm/, whose projections are the groups.

#include "dsv4/ops/gemm/cuda/problem.h"
#include "dsv4/ops/gemm/cuda/rows_for_split.h"
#include "dsv4/ops/parts/linear/linear.h"

namespace dsv4::linear_kernel {
namespace {

using gemm::cuda::Problem;

Problem problem_of(const Context& context, const LinearArgs& args) {
  const WeightView& w = args.weight;
  const int64_t n = w.n / args.groups;
  Problem p{.x = args.x.data,
            .x_dtype = args.x.dtype,
            .x_stride = args.x.row_stride(),
            .x_projection_stride = w.k,
            .out = args.out.data,
            .out_dtype = args.out.dtype,
            .out_stride = args.out.row_stride(),
            .n = static_cast<int>(n),
            .k = static_cast<int>(w.k),
            .projections = static_cast<int>(args.groups),
            .projection_is_matrix = true,
            .weight = {gemm::cuda::single_matrix(w)},
            .m = args.x.dim(0),
            .weight_rows_per_token = gemm::cuda::rows_for_split(context, w.n)};
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

namespace cuda {

const char* reject(const Context&, const LinearArgs& args) {
  return reject_quantize(args);
}

void run(const Context& context, const LinearArgs& args) {
  Problem p = problem_of(context, args);
  p.tile_m = gemm::cuda::gemv_tile(*context.device, p, 1);
  gemm::cuda::run_gemv(*context.device, p);
}

}  // namespace cuda

namespace cuda_mma {

const char* reject(const Context& context, const LinearArgs& args) {
  if (context.numerics == Numerics::kExact) return "exact numerics";
  if (const char* why = reject_quantize(args)) return why;
  constexpr int64_t kFewTokens = 4;  // the GEMV kernels are as fast
  if (args.x.dim(0) <= kFewTokens && context.force_impl.empty()) return "few tokens";
  return gemm::cuda::reject_mma(problem_of(context, args));
}

double rounding(const LinearArgs& args) {
  return gemm::cuda::mma_rounding(args.weight, args.x.dtype);
}

void run(const Context& context, const LinearArgs& args) {
  Problem p = problem_of(context, args);
  const Scratch::Scope scope(context.device->workspace());
  p.tile_m = gemm::cuda::mma_tile(*context.device, p, 1);
  if (p.x_dtype == DType::kE4M3 && p.tile_m > gemm::cuda::kSmallM)
    gemm::cuda::widen_activations(*context.device, p);
  gemm::cuda::run_mma(*context.device, p);
}

}  // namespace cuda_mma

}  // namespace dsv4::linear_kernel
