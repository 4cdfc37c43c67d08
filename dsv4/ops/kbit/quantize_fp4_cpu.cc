#include <atomic>

#include "dsv4/base/error.h"
#include "dsv4/cpu/parallel.h"
#include "dsv4/ops/kbit/quantize_fp4.h"
#include "dsv4/ops/kbit/quantize_fp4_group.h"

namespace dsv4::quantize_fp4_kernel::cpu {
namespace {

// False when a value is not finite.
bool quantize_row(const QuantizeFp4Args& args, int64_t row, int group_size) {
  const float* x = args.x.row<float>(row);
  for (int64_t at = 0; at < args.x.dim(1); at += group_size) {
    if (!all_finite(x + at, group_size)) return false;
    const Fp4Group group{
        .x = x + at,
        .importance = args.importance.empty() ? nullptr : args.importance.as<float>() + at,
        .count = group_size,
        .mx = args.format == WeightFormat::kMxfp4,
        .scale2 = args.scale2};
    const int byte = args.searched ? group.searched_byte() : group.plain_byte();
    args.scales.row<uint8_t>(row)[at / group_size] = static_cast<uint8_t>(byte);
    group.write(byte, args.pairs.row<uint8_t>(row) + at / 2);
  }
  return true;
}

[[noreturn]] void report_not_finite(const ConstTensorView& x) {
  for (int64_t row = 0; row < x.dim(0); ++row) {
    for (int64_t column = 0; column < x.dim(1); ++column) {
      const float value = x.row<float>(row)[column];
      if (!finite(value)) fail(ErrorCode::kBadInput, "row {}, column {} is {}", row, column, value);
    }
  }
  fail(ErrorCode::kBadInput, "a value is not finite");
}

}  // namespace

void run(const Context&, const QuantizeFp4Args& args) {
  const int group = args.format == WeightFormat::kMxfp4 ? kMxfp4Group : kNvfp4Group;
  std::atomic<bool> all = true;
#pragma omp parallel for schedule(static) if (dsv4::cpu::worth_sharing(200 * args.x.numel()))
  for (int64_t row = 0; row < args.x.dim(0); ++row) {
    if (!quantize_row(args, row, group)) all = false;
  }
  if (!all) report_not_finite(args.x);
}

}  // namespace dsv4::quantize_fp4_kernel::cpu
