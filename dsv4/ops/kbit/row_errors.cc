#include "dsv4/ops/kbit/row_errors.h"

namespace dsv4::row_errors_kernel {

DSV4_IMPL(RowErrorsArgs, cpu)
// The bits of cpu.
DSV4_IMPL(RowErrorsArgs, cuda)

constexpr Impl<RowErrorsArgs> kRowErrors[] = {
#if DSV4_CUDA
    {"cuda", Arch::kCuda, true, accept_all<RowErrorsArgs>, cuda::run},
#endif
    {"cpu", Arch::kCpu, true, accept_all<RowErrorsArgs>, cpu::run},
};

}  // namespace dsv4::row_errors_kernel

namespace dsv4 {
namespace {

void check(const RowErrorsArgs& args) {
  Dim n("n"), k("k");
  expect("x", args.x, {DType::kF32}, {n, k});
  expect("y", args.y, {DType::kF32}, {n, k});
  if (!args.importance.empty()) expect("importance", args.importance, {DType::kF32}, {k});
  expect("sums", args.sums, {DType::kF64}, {n, kErrorSums});
}

Cost cost(const RowErrorsArgs& args) {
  return {.bytes = static_cast<double>(args.x.bytes() + args.y.bytes() + args.sums.bytes()),
          .flops = (args.importance.empty() ? 7. : 11.) * static_cast<double>(args.x.numel())};
}

}  // namespace

constinit const Op<RowErrorsArgs> row_errors{"row_errors", row_errors_kernel::kRowErrors, check,
                                             cost};

}  // namespace dsv4
