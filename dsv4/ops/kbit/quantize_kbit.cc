#include "dsv4/ops/kbit/quantize_kbit.h"

#include <cmath>

#include "dsv4/base/error.h"
#include "dsv4/formats/kbit.h"

namespace dsv4::quantize_kbit_kernel {

DSV4_IMPL(QuantizeKbitArgs, cpu)
// The bits of cpu.
DSV4_IMPL(QuantizeKbitArgs, cuda)

constexpr Impl<QuantizeKbitArgs> kQuantizeKbit[] = {
#if DSV4_CUDA
    {"cuda", Arch::kCuda, true, accept_all<QuantizeKbitArgs>, cuda::run},
#endif
    {"cpu", Arch::kCpu, true, accept_all<QuantizeKbitArgs>, cpu::run},
};

}  // namespace dsv4::quantize_kbit_kernel

namespace dsv4 {
namespace {

void check(const QuantizeKbitArgs& args) {
  const int bits = args.codebook.bits;
  DSV4_CHECK(is_kbit(bits), "codebook: want 2 to 5 bits, got {}", bits);
  DSV4_CHECK(args.codebook.largest() > 0, "codebook: its ends are zero");
  Dim n("n"), k("k");
  expect("x", args.x, {DType::kF32, DType::kBF16, DType::kF16}, {n, k});
  const int64_t blocks = ceil_div(*k, kKbitBlock);
  expect("planes", args.planes, {DType::kI32}, {n, blocks * bits});
  expect("scales", args.scales, {DType::kU8}, {n, blocks});
  if (!args.first_bad.empty()) expect("first_bad", args.first_bad, {DType::kI32}, {1});
  if (!args.importance.empty()) {
    expect("importance", args.importance, {DType::kF32}, {k});
    DSV4_CHECK(args.choice == ScaleChoice::kSearched, "importance needs searched scales");
  }
  int exponent = 0;  // of a power of two whose inverse is a normal float
  const bool is_power = std::frexp(args.tensor_scale, &exponent) == 0.5f;
  DSV4_CHECK(is_power && exponent > -126 && exponent < 127,
             "tensor_scale {} is not a power of two from 2^-126 to 2^125", args.tensor_scale);
}

Cost cost(const QuantizeKbitArgs& args) {
  // Reference: a distance and a comparison per codebook value. Searched: the same for 32 to 64
  // scales, counted as 32.
  const double compared = 3.0 * args.codebook.size() * static_cast<double>(args.x.numel());
  return {.bytes = static_cast<double>(args.x.bytes() + args.planes.bytes() + args.scales.bytes()),
          .flops = compared * (args.choice == ScaleChoice::kReference ? 1 : 33)};
}

}  // namespace

const char* name(ScaleChoice choice) {
  return choice == ScaleChoice::kReference ? "reference" : "searched";
}

constinit const Op<QuantizeKbitArgs> quantize_kbit{
    "quantize_kbit", quantize_kbit_kernel::kQuantizeKbit, check, cost};

float choose_tensor_scale(float largest_magnitude) {
  if (!std::isfinite(largest_magnitude) || largest_magnitude < 0)
    fail(ErrorCode::kBadInput, "the largest magnitude of a tensor cannot be {}", largest_magnitude);
  constexpr float kMost = 16.f, kLeast = 0x1p-4f;
  if (largest_magnitude == 0 || (largest_magnitude >= kLeast && largest_magnitude <= kMost))
    return 1;
  int exponent = 0;
  const float fraction = std::frexp(largest_magnitude, &exponent);  // [0.5, 1) * 2^exponent
  const int up = fraction == 0.5f ? exponent - 1 : exponent;        // ceil(log2)
  return std::ldexp(1.f, std::max(up - 4, -126));
}

}  // namespace dsv4
