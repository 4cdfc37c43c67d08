#include "dsv4/cpu/rows.h"

#include <algorithm>

#include "dsv4/base/error.h"
#include "dsv4/cpu/vec.h"
#include "dsv4/formats/float16.h"

namespace dsv4::cpu {

void load(const ConstTensorView& view, int64_t offset, int64_t n, float* out) {
  switch (view.dtype) {
    case DType::kF32:
      std::copy_n(view.as<float>() + offset, n, out);
      return;
    case DType::kBF16:
      return widen_bf16(view.as<uint16_t>() + offset, out, n);
    case DType::kF16:
      for (int64_t i = 0; i < n; ++i) out[i] = f16_to_f32(view.as<uint16_t>()[offset + i]);
      return;
    default:
      fail(ErrorCode::kUnsupported, "load of {} values", name(view.dtype));
  }
}

void store(const TensorView& view, int64_t offset, int64_t n, const float* values) {
  switch (view.dtype) {
    case DType::kF32:
      std::copy_n(values, n, view.as<float>() + offset);
      return;
    case DType::kBF16:
      return narrow_bf16(values, view.as<uint16_t>() + offset, n);
    case DType::kF16:
      return narrow_f16(values, view.as<uint16_t>() + offset, n);
    default:
      fail(ErrorCode::kUnsupported, "store of {} values", name(view.dtype));
  }
}

}  // namespace dsv4::cpu
