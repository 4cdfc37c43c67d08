#include "dsv4/ops/parts/rope/rope.h"

#include <algorithm>
#include <cmath>

#include "dsv4/base/error.h"

namespace dsv4::rope_kernel {

DSV4_IMPL(RopeArgs, cuda)
DSV4_IMPL(RopeArgs, cpu)

constexpr Impl<RopeArgs> kRope[] = {
#if DSV4_CUDA
    {"cuda", Arch::kCuda, true, accept_all<RopeArgs>, cuda::run},
#endif
    {"cpu", Arch::kCpu, true, accept_all<RopeArgs>, cpu::run},
};

}  // namespace dsv4::rope_kernel

namespace dsv4 {
namespace {

void check(const RopeArgs& args) {
  Dim t("t"), h("h"), d("d"), num_pairs("num_pairs");
  expect("x", args.x, {DType::kF32, DType::kBF16}, {t, h, d});
  expect("positions", args.positions, {DType::kI32}, {t});
  expect("freqs", args.freqs, {DType::kF32}, {num_pairs});
  DSV4_CHECK(2 * *num_pairs <= *d, "{} pairs do not fit d={}", *num_pairs, *d);
}

// The pair index whose angle makes `rotations` full turns within the original context.
double correction_pair(double rotations, int dim, double base, const YarnParams& yarn) {
  constexpr double kTwoPi = 6.283185307179586;
  return dim * std::log(yarn.original_positions / (rotations * kTwoPi)) / (2 * std::log(base));
}

// (f / factor) (1 - s) + f s with s = 1 - ramp: high frequencies are kept, low ones divided by
// factor.
void stretch(std::vector<float>& freqs, int dim, double base, const YarnParams& yarn) {
  const double low = std::max(std::floor(correction_pair(yarn.beta_fast, dim, base, yarn)), 0.0);
  const double high =
      std::min(std::ceil(correction_pair(yarn.beta_slow, dim, base, yarn)), dim - 1.0);
  // Equal ends make the ramp a step.
  const auto width = static_cast<float>(high > low ? high - low : 0.001);
  for (size_t i = 0; i < freqs.size(); ++i) {
    const float along = (static_cast<float>(i) - static_cast<float>(low)) / width;
    const float keep = 1.f - std::clamp(along, 0.f, 1.f);
    freqs[i] = freqs[i] / static_cast<float>(yarn.factor) * (1.f - keep) + freqs[i] * keep;
  }
}

Cost cost(const RopeArgs& args) {
  const double tokens = static_cast<double>(args.x.dim(0));
  const double pairs = static_cast<double>(args.freqs.dim(0));
  const double rotated = tokens * static_cast<double>(args.x.dim(1)) * pairs;
  const auto item = static_cast<double>(item_bytes(args.x.dtype));
  return {.bytes = 4 * rotated * item + 4 * (tokens + pairs), .flops = 6 * rotated};
}

}  // namespace

std::vector<float> rope_frequencies(int dim, double base, const YarnParams& yarn) {
  DSV4_CHECK(dim >= 0 && dim % 2 == 0, "dim={}", dim);
  DSV4_CHECK(base > 1 && std::isfinite(base), "base={}", base);
  DSV4_CHECK(!yarn.on || (yarn.factor > 0 && yarn.original_positions > 0 && yarn.beta_fast > 0 &&
                          yarn.beta_slow > 0),
             "factor={} original_positions={} beta_fast={} beta_slow={}", yarn.factor,
             yarn.original_positions, yarn.beta_fast, yarn.beta_slow);
  std::vector<float> freqs;
  for (int i = 0; i < dim / 2; ++i) {
    // f32 at each step as in the reference; the power is rounded once from f64, so its last bit
    // does not depend on the C library.
    const float exponent = static_cast<float>(2 * i) / static_cast<float>(dim);
    freqs.push_back(1.f / static_cast<float>(std::pow(base, static_cast<double>(exponent))));
  }
  if (yarn.on) stretch(freqs, dim, base, yarn);
  return freqs;
}

constinit const Op<RopeArgs> rope{"rope", rope_kernel::kRope, check, cost};

}  // namespace dsv4
