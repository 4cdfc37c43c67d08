#include "dsv4/cpu/parallel.h"
#include "dsv4/ops/kbit/row_errors.h"

namespace dsv4::row_errors_kernel::cpu {
namespace {

// h: [k] or null; sums: [5]
void add_row(const float* x, const float* y, const float* h, int64_t k, double* sums) {
  double signal = 0, noise = 0, dot = 0, weighted_signal = 0, weighted_dot = 0;
  for (int64_t i = 0; i < k; ++i) {
    const auto value = static_cast<double>(x[i]), decoded = static_cast<double>(y[i]);
    const double off = decoded - value, product = value * decoded;
    signal += value * value;
    noise += off * off;
    dot += product;
    if (h == nullptr) continue;
    const auto weight = static_cast<double>(h[i]);
    weighted_signal += weight * value * value;
    weighted_dot += weight * product;
  }
  if (h == nullptr) weighted_signal = signal, weighted_dot = dot;
  sums[0] = signal, sums[1] = noise, sums[2] = dot;
  sums[3] = weighted_signal, sums[4] = weighted_dot;
}

}  // namespace

void run(const Context&, const RowErrorsArgs& args) {
  const float* h = args.importance.empty() ? nullptr : args.importance.as<float>();
#pragma omp parallel for schedule(static) if (dsv4::cpu::worth_sharing(args.x.numel()))
  for (int64_t row = 0; row < args.x.dim(0); ++row)
    add_row(args.x.row<float>(row), args.y.row<float>(row), h, args.x.dim(1),
            args.sums.row<double>(row));
}

}  // namespace dsv4::row_errors_kernel::cpu
