#include "dsv4/ops/parts/expert_linear/expert_linear.h"

#include "dsv4/base/error.h"

namespace dsv4::expert_linear_kernel {

// Tensor cores for up to 8 rows of an expert at a time: k-bit weights at equal distances that share
// a codebook, x in bf16 or f16. Chosen for up to 10 rows an expert on average.
DSV4_IMPL(ExpertLinearArgs, cuda_kbit)
// Tensor cores under kOfficial. Weights whose values are no numbers of the operands' type (bf16, or
// f16 where x is) are rounded to it.
DSV4_IMPL(ExpertLinearArgs, cuda_mma)
// f32 arithmetic for any format, shape and alignment.
DSV4_IMPL(ExpertLinearArgs, cuda)
DSV4_IMPL(ExpertLinearArgs, cpu)

namespace cuda_mma {
double rounding(const ExpertLinearArgs& args);
}
namespace cuda_kbit {
double rounding(const ExpertLinearArgs& args);
}
namespace cpu {
HostBytes host_bytes(const ExpertLinearArgs& args);
}

constexpr Impl<ExpertLinearArgs> kExpertLinear[] = {
#if DSV4_CUDA
    {"cuda_kbit", Arch::kCuda, true, cuda_kbit::reject, cuda_kbit::run, cuda_kbit::rounding},
    {"cuda_mma", Arch::kCuda, false, cuda_mma::reject, cuda_mma::run, cuda_mma::rounding},
    {"cuda", Arch::kCuda, true, accept_all<ExpertLinearArgs>, cuda::run},
#endif
    {"cpu", Arch::kCpu, true, accept_all<ExpertLinearArgs>, cpu::run, 0, cpu::host_bytes},
};

}  // namespace dsv4::expert_linear_kernel

namespace dsv4 {
namespace {

void check(const ExpertLinearArgs& args) {
  const std::initializer_list<DType> floats = {DType::kF32, DType::kBF16, DType::kF16};
  Dim rows("rows"), k("k"), n("n");
  expect("x", args.x, floats, {rows, k});
  expect("out", args.out, floats, {rows, n});
  expect("offsets", args.offsets, {DType::kI32}, {std::ssize(args.weights) + 1});
  for (size_t e = 0; e < args.weights.size(); ++e) {
    const WeightView& w = args.weights[e];
    check("weight", w);
    DSV4_CHECK(w.n == *n && w.k == *k, "weight of expert {}: want [{}, {}], got [{}, {}]", e, *n,
               *k, w.n, w.k);
  }
}

// Every weight counts, because the offsets may be on a device.
Cost cost(const ExpertLinearArgs& args) {
  double weight_bytes = 0;
  for (const WeightView& w : args.weights) weight_bytes += static_cast<double>(w.bytes());
  const auto rows = static_cast<double>(args.x.dim(0));
  return {.bytes = weight_bytes +
                   static_cast<double>(args.x.bytes() + args.offsets.bytes() + args.out.bytes()),
          .flops = 2.0 * rows * static_cast<double>(args.x.dim(1)) *
                   static_cast<double>(args.out.dim(1)),
          .weight_bytes = weight_bytes};
}

}  // namespace

constinit const Op<ExpertLinearArgs> expert_linear{
    "expert_linear", expert_linear_kernel::kExpertLinear, check, cost};

}  // namespace dsv4
