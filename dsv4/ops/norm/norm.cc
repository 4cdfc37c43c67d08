#include "dsv4/ops/norm/norm.h"

#include "dsv4/ops/norm/norm_cpu.h"
#if DSV4_CUDA
#include "dsv4/ops/norm/norm_cuda.h"
#endif

namespace dsv4 {
namespace {

constexpr Row<RmsNormArgs> kRmsNorm[] = {
#if DSV4_CUDA
    {"cuda", Arch::kCuda, true, accept_all<RmsNormArgs>, rms_norm_cuda},
#endif
    {"cpu", Arch::kCpu, true, accept_all<RmsNormArgs>, rms_norm_cpu},
};

constexpr Row<HeadNormArgs> kHeadNorm[] = {
#if DSV4_CUDA
    {"cuda", Arch::kCuda, true, accept_all<HeadNormArgs>, head_norm_cuda},
#endif
    {"cpu", Arch::kCpu, true, accept_all<HeadNormArgs>, head_norm_cpu},
};

void check(const RmsNormArgs& args) {
  Dim t("t"), d("d");
  expect("x", args.x, {DType::kF32, DType::kBF16}, {t, d});
  expect("weight", args.weight, {DType::kF32, DType::kBF16}, {d});
  expect("out", args.out, {DType::kF32, DType::kBF16}, {t, d});
}

void check(const HeadNormArgs& args) {
  Dim rows("rows"), d("d");
  expect("x", args.x, {DType::kF32, DType::kBF16}, {rows, d});
  expect("out", args.out, {DType::kF32, DType::kBF16}, {rows, d});
}

}  // namespace

Table<RmsNormArgs> rms_norm_rows() {
  return kRmsNorm;
}
Table<HeadNormArgs> head_norm_rows() {
  return kHeadNorm;
}

Cost rms_norm_cost(const RmsNormArgs& args) {
  return {.bytes = static_cast<double>(args.x.bytes() + args.weight.bytes() + args.out.bytes()),
          .flops = 4.0 * static_cast<double>(args.x.numel())};
}
Cost head_norm_cost(const HeadNormArgs& args) {
  return {.bytes = static_cast<double>(args.x.bytes() + args.out.bytes()),
          .flops = 3.0 * static_cast<double>(args.x.numel())};
}

void rms_norm(const Context& context, const RmsNormArgs& args) {
  check(args);
  choose(rms_norm_rows(), context, args).run(context, args);
}

void head_norm(const Context& context, const HeadNormArgs& args) {
  check(args);
  choose(head_norm_rows(), context, args).run(context, args);
}

}  // namespace dsv4
