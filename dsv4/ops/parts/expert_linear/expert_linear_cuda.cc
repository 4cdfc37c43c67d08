// The implementations cuda, cuda_mma and cuda_kbit of expert_linear.h: the portable CUDA kernels of
// gemm/ over a list of matrices. The host reads no offset.

#include <algorithm>

#include "dsv4/ops/gemm/cuda/grouped.h"
#include "dsv4/ops/gemm/cuda/kbit_experts.h"
#include "dsv4/ops/parts/expert_linear/expert_linear.h"

namespace dsv4::expert_linear_kernel {
namespace {

using gemm::cuda::Kernels;
using gemm::cuda::Problem;

Problem problem_of(const ExpertLinearArgs& args) {
  return {.x = args.x.data,
          .x_dtype = args.x.dtype,
          .x_stride = args.x.row_stride(),
          .out = args.out.data,
          .out_dtype = args.out.dtype,
          .out_stride = args.out.row_stride(),
          .n = static_cast<int>(args.out.dim(1)),
          .k = static_cast<int>(args.x.dim(1)),
          .m = args.x.dim(0),
          .weight_rows_per_token = static_cast<int>(args.out.dim(1))};
}

void run(const Context& context, const ExpertLinearArgs& args, Kernels kernels) {
  gemm::cuda::run_grouped(*context.device, problem_of(args), args.weights,
                          args.offsets.as<int32_t>(), kernels);
}

}  // namespace

namespace cuda {

void run(const Context& context, const ExpertLinearArgs& args) {
  expert_linear_kernel::run(context, args, Kernels::kGemv);
}

}  // namespace cuda

namespace cuda_mma {

const char* reject(const Context& context, const ExpertLinearArgs& args) {
  if (context.numerics == Numerics::kExact) return "exact numerics";
  // Where most experts have one row, the GEMV kernels are as fast.
  const bool few = 2 * args.x.dim(0) <= std::ssize(args.weights) || args.x.dim(0) <= 1;
  if (few && context.force_impl.empty()) return "few rows for each expert";
  return gemm::cuda::reject_grouped_mma(problem_of(args), args.weights);
}

double rounding(const ExpertLinearArgs& args) {
  double most = 0;
  for (const WeightView& w : args.weights)
    most = std::max(most, gemm::cuda::mma_rounding(w, args.x.dtype));
  return most;
}

void run(const Context& context, const ExpertLinearArgs& args) {
  expert_linear_kernel::run(context, args, Kernels::kMma);
}

}  // namespace cuda_mma

namespace cuda_kbit {

namespace kernel = gemm::kbit_experts;

const char* reject(const Context& context, const ExpertLinearArgs& args) {
  if (context.numerics == Numerics::kExact) return "exact numerics";
  // With more rows of a matrix cuda_mma, which decodes it once for up to 64, is faster. By name,
  // and where bits must not depend on the batch, any number is taken.
  constexpr int64_t kMostRows = 10;
  const bool any = context.need_batch_invariant || !context.force_impl.empty();
  if (args.x.dim(0) > kMostRows * std::ssize(args.weights) && !any)
    return "many rows for each expert";
  return kernel::reject_sorted(*context.device, problem_of(args), args.weights);
}

double rounding(const ExpertLinearArgs& args) {
  return kernel::rounding(args.x.dtype);
}

void run(const Context& context, const ExpertLinearArgs& args) {
  kernel::run_sorted(*context.device, problem_of(args), args.weights, args.offsets.as<int32_t>());
}

}  // namespace cuda_kbit

}  // namespace dsv4::expert_linear_kernel
