// S8 and S4 from the formulas of docs/spec/dsv4.md 0.4, and the quantizer of V3.2 rows from
// docs/spec/attention-kernels.md 1.3, by search in the table of representable values. It shares no
// code with the packers of formats/.

#include "dsv4/ops/parts/kv_insert/kv_insert_case.h"

#include <algorithm>
#include <cmath>

#include "dsv4/ops/oracle.h"

namespace dsv4 {
namespace {

// The smallest power of two >= z.
double power_of_two_above(double z) {
  const double power = std::exp2(std::ceil(std::log2(z)));
  return power / 2 >= z ? power / 2 : power;
}

// Nearest magnitude of a float format without infinities, ties to the even mantissa.
double nearest(double x, int mantissa_bits, int min_exponent, double largest) {
  const double magnitude = std::min(std::abs(x), largest);
  const int exponent = magnitude == 0 ? min_exponent : std::ilogb(magnitude);
  const double step = std::exp2(std::max(exponent, min_exponent) - mantissa_bits);
  return std::copysign(std::min(std::nearbyint(magnitude / step) * step, largest), x);
}

struct Format {
  size_t group;
  int mantissa_bits, min_exponent;
  double largest, floor;
};
constexpr Format kS8{64, 3, -6, 448, 1e-4}, kV32{128, 3, -6, 448, 448 * 1e-4},
    kS4{32, 1, 0, 6, 6 * 0x1p-126};

void simulate(const Format& format, double* x) {
  double amax = format.floor;
  for (size_t i = 0; i < format.group; ++i) amax = std::max(amax, std::abs(x[i]));
  const double scale = power_of_two_above(amax / format.largest);
  for (size_t i = 0; i < format.group; ++i) {
    x[i] = scale * nearest(x[i] / scale, format.mantissa_bits, format.min_exponent, format.largest);
  }
}

template <class Args, class Simulate>
std::vector<double> kept_rows(const Args& args, const Simulate& simulate_row) {
  std::vector<double> out;
  for (int64_t i = 0; i < args.x.dim(0); ++i) {
    if (args.rows.template as<int32_t>()[i] < 0) continue;
    std::vector<double> row = oracle::row(args.x, i);
    if (args.pool.packed()) simulate_row(row);
    out.insert(out.end(), row.begin(), row.end());
  }
  return out;
}

}  // namespace

std::vector<double> kv_insert_oracle(const KvInsertArgs& args) {
  const auto nope = static_cast<size_t>(args.pool.layout.nope);
  const Format& format = args.pool.layout.v32() ? kV32 : kS8;
  return kept_rows(args, [&](std::vector<double>& row) {
    for (size_t c = 0; c < nope; c += format.group) simulate(format, row.data() + c);
    for (size_t c = nope; c < row.size(); ++c) row[c] = oracle::bf16(row[c]);
  });
}

std::vector<double> index_insert_oracle(const IndexInsertArgs& args) {
  return kept_rows(args, [&](std::vector<double>& row) {
    for (size_t c = 0; c < row.size(); c += kS4.group) simulate(kS4, row.data() + c);
  });
}

}  // namespace dsv4
