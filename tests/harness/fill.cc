#include "tests/harness/fill.h"

#include "dsv4/base/error.h"
#include "dsv4/formats/e4m3.h"
#include "dsv4/formats/float16.h"
#include "dsv4/ops/oracle.h"

namespace dsv4::test {

double value_at(const ConstTensorView& view, int64_t i) {
  switch (view.dtype) {
    case DType::kF64:
      return view.as<double>()[i];
    case DType::kI16:
      return static_cast<double>(view.as<int16_t>()[i]);
    case DType::kI8:
      return static_cast<double>(view.as<int8_t>()[i]);
    case DType::kU8:
    case DType::kBool:
      return static_cast<double>(view.as<uint8_t>()[i]);
    default:
      return oracle::value(view, i);
  }
}

void set_value(const TensorView& view, int64_t i, double value) {
  switch (view.dtype) {
    case DType::kF32:
      view.as<float>()[i] = static_cast<float>(value);
      return;
    case DType::kBF16:
      view.as<uint16_t>()[i] = f32_to_bf16(static_cast<float>(value));
      return;
    case DType::kF16:
      view.as<uint16_t>()[i] = f32_to_f16(static_cast<float>(value));
      return;
    case DType::kE4M3:
      view.as<uint8_t>()[i] = f32_to_e4m3(static_cast<float>(value));
      return;
    case DType::kI64:
      view.as<int64_t>()[i] = static_cast<int64_t>(value);
      return;
    case DType::kI32:
      view.as<int32_t>()[i] = static_cast<int32_t>(value);
      return;
    default:
      fail(ErrorCode::kUnsupported, "set_value on {}", name(view.dtype));
  }
}

void fill_normal(const TensorView& view, Rng& rng, double sigma, double mean) {
  for (int64_t i = 0; i < view.numel(); ++i) set_value(view, i, mean + sigma * rng.normal());
}
void fill_uniform(const TensorView& view, Rng& rng, double low, double high) {
  for (int64_t i = 0; i < view.numel(); ++i) set_value(view, i, rng.uniform(low, high));
}
void fill_ints(const TensorView& view, Rng& rng, int64_t low, int64_t high) {
  for (int64_t i = 0; i < view.numel(); ++i)
    set_value(view, i, static_cast<double>(low + rng.below(high - low)));
}

}  // namespace dsv4::test
