#include "dsv4/capi/read_tensor.h"

#include <bit>
#include <cmath>
#include <cstring>

#include "dsv4/base/error.h"
#include "dsv4/capi/on_device.h"
#include "dsv4/ops/kbit/quantize_kbit.h"
#if DSV4_CUDA
#include "dsv4/device/device.h"
#include "dsv4/device/error.h"
#endif

namespace dsv4::capi {

void read_tensor([[maybe_unused]] const Context& context, const ConstTensorView& tensor, void* to) {
  DSV4_CHECK(tensor.is_contiguous(), "a tensor that is read on the host has gaps");
#if DSV4_CUDA
  if (context.device != nullptr)
    return context.device->memory().download(static_cast<std::byte*>(to), tensor.data,
                                             tensor.bytes());
#endif
  std::memcpy(to, tensor.data, static_cast<size_t>(tensor.bytes()));
}

void write_tensor([[maybe_unused]] const Context& context, const TensorView& tensor,
                  const void* from) {
  DSV4_CHECK(tensor.is_contiguous(), "a tensor that is written by the host has gaps");
#if DSV4_CUDA
  if (context.device != nullptr)
    return context.device->memory().upload(tensor.data, static_cast<const std::byte*>(from),
                                           tensor.bytes());
#endif
  std::memcpy(tensor.data, from, static_cast<size_t>(tensor.bytes()));
}

#if DSV4_CUDA

float largest_magnitude_at(int device, const ConstTensorView& x) {
  if (device == DSV4_HOST) return largest_magnitude(x);
  float largest = 0;
  on_device({.ordinal = device}, {}, [&](const Context& context) {
    cuda_check(cudaDeviceSynchronize(), "kbit_tensor_scale");  // of whatever stream writes x
    const Buffer bits(DType::kI32, {1}, context.device->memory());
    largest_magnitude_on(*context.device, x, bits.as<int32_t>());
    read_tensor(context, bits.view(), &largest);
  });
  if (!std::isfinite(largest)) fail(ErrorCode::kBadInput, "x holds a NaN or an infinity");
  return largest;
}

#else

float largest_magnitude_at(int device, const ConstTensorView& x) {
  if (device == DSV4_HOST) return largest_magnitude(x);
  fail(ErrorCode::kUnsupported, "device={}: this build has no CUDA, only DSV4_HOST ({})", device,
       DSV4_HOST);
}

#endif

}  // namespace dsv4::capi
