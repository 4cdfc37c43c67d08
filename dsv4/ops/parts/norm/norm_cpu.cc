#include "dsv4/ops/parts/norm/norm.h"

#include <cmath>
#include <vector>

#include "dsv4/cpu/parallel.h"
#include "dsv4/cpu/rows.h"
#include "dsv4/cpu/vec.h"
#include "dsv4/formats/float16.h"
#include "dsv4/ops/gemm/gemm.h"
#include "dsv4/ops/parts/quant/quant.h"

namespace dsv4::norm_kernel::cpu {
namespace {

// One head of q, every step in bf16 (RMS0_bf16 of docs/spec/dsv4.md 0.4). x: [d], in place
void stepped_norm(float* x, int64_t d, float eps) {
  float sum = 0;
  for (int64_t i = 0; i < d; ++i) sum += round_to_bf16(x[i] * x[i]);
  const float mean = round_to_bf16(sum / static_cast<float>(d));
  const float root = round_to_bf16(1.f / std::sqrt(round_to_bf16(mean + eps)));
  dsv4::cpu::scale(root, x, x, d);
}

void plain_norm(float* x, int64_t d, float eps) {
  const float mean = dsv4::cpu::sum_squares(x, d) / static_cast<float>(d);
  dsv4::cpu::scale(1.f / std::sqrt(mean + eps), x, x, d);
}

}  // namespace

void run(const Context& context, const RmsNormArgs& args) {
  const int64_t rows = args.x.dim(0), d = args.x.dim(1);
  std::vector<float> weight(static_cast<size_t>(d));
  dsv4::cpu::load(args.weight, 0, d, weight.data());
#pragma omp parallel if (dsv4::cpu::worth_sharing(4 * rows * d))
  {
    std::vector<float> x(static_cast<size_t>(d));
#pragma omp for
    for (int64_t t = 0; t < rows; ++t) {
      dsv4::cpu::load(args.x, t * args.x.row_stride(), d, x.data());
      const float mean = dsv4::cpu::sum_squares(x.data(), d) / static_cast<float>(d);
      dsv4::cpu::multiply(1.f / std::sqrt(mean + args.eps), x.data(), weight.data(), x.data(), d);
      dsv4::cpu::store(args.out, t * args.out.row_stride(), d, x.data());
    }
  }
  if (args.codes.rank == 0) return;
  impl_of(quantize_q8, "cpu")
      .run(context, {.x = args.out,
                     .codes = args.codes,
                     .scales = args.scales,
                     .group = static_cast<int>(kActivationGroup)});
}

void run(const Context& context, const HeadNormArgs& args) {
  const int64_t rows = args.x.dim(0), d = args.x.dim(1);
  const auto norm = context.numerics == Numerics::kOfficial ? stepped_norm : plain_norm;
#pragma omp parallel if (dsv4::cpu::worth_sharing(4 * rows * d))
  {
    std::vector<float> x(static_cast<size_t>(d));
#pragma omp for
    for (int64_t r = 0; r < rows; ++r) {
      dsv4::cpu::load(args.x, r * args.x.row_stride(), d, x.data());
      norm(x.data(), d, args.eps);
      dsv4::cpu::store(args.out, r * args.out.row_stride(), d, x.data());
    }
  }
}

}  // namespace dsv4::norm_kernel::cpu
