#include "dsv4/ops/parts/quant/quant.h"

#include <vector>

#include "dsv4/base/not_finite.h"
#include "dsv4/cpu/parallel.h"
#include "dsv4/cpu/quant.h"
#include "dsv4/cpu/rows.h"
#include "dsv4/formats/finite.h"

namespace dsv4::quant_kernel::cpu {
namespace {

// Calls body(row, values) for every row of x as f32, in parallel over rows. body may overwrite
// `values`.
template <class Body>
void for_rows(const ConstTensorView& x, const Body& body) {
  const int64_t rows = x.dim(0), n = x.dim(1);
#pragma omp parallel if (rows > 1 && dsv4::cpu::worth_sharing(10 * rows * n))
  {
    std::vector<float> values(static_cast<size_t>(n));
#pragma omp for
    for (int64_t r = 0; r < rows; ++r) {
      dsv4::cpu::load(x, r * x.row_stride(), n, values.data());
      body(r, values.data());
    }
  }
}

}  // namespace

void run(const Context&, const QuantizeQ8Args& args) {
  for_rows(args.x, [&](int64_t r, const float* x) {
    dsv4::cpu::quantize_q8_row(x, args.x.dim(1), args.group, args.codes.row<uint8_t>(r),
                               args.scales.row<uint8_t>(r));
  });
}

void run(const Context&, const FakeQuantArgs& args) {
  if (args.format == FakeQuantFormat::kS4) {
    if (const auto at = first_non_finite(args.x))
      throw NotFinite(fmt::format("value {} of x is {}: 4-bit codes hold numbers only", *at,
                                  value_at(args.x, *at)));
  }
  const int64_t k = args.x.dim(1);
  const auto quantize =
      args.format == FakeQuantFormat::kS8 ? dsv4::cpu::fake_q8_row : dsv4::cpu::fake_q4_row;
  for_rows(args.x, [&](int64_t r, float* x) {
    quantize(x, k, args.group, x);
    dsv4::cpu::store(args.out, r * args.out.row_stride(), k, x);
  });
}

void run(const Context&, const HadamardArgs& args) {
  const int64_t n = args.x.dim(1);
  for_rows(args.x, [&](int64_t r, float* x) {
    dsv4::cpu::hadamard_row(x, n);
    dsv4::cpu::store(args.out, r * args.out.row_stride(), n, x);
  });
}

}  // namespace dsv4::quant_kernel::cpu
