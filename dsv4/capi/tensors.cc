#include "dsv4/capi/tensors.h"

#include "dsv4/base/error.h"

namespace dsv4::capi {
namespace {

// In the order of dsv4_dtype.
constexpr DType kDTypes[] = {DType::kF32, DType::kBF16, DType::kF16,  DType::kF64,
                             DType::kI32, DType::kI64,  DType::kI16,  DType::kI8,
                             DType::kU8,  DType::kBool, DType::kE4M3, DType::kE8M0};
static_assert(std::size(kDTypes) == DSV4_E8M0 + 1 && kDTypes[DSV4_U8] == DType::kU8 &&
              kMaxRank == DSV4_MAX_RANK);

std::string text(int device) {
  return device == DSV4_HOST ? "on the host" : fmt::format("on cuda:{}", device);
}

TensorView checked_view(const char* name, const dsv4_tensor& tensor) {
  const int32_t dtype = tensor.dtype, rank = tensor.rank;
  DSV4_CHECK(dtype >= 0 && dtype <= DSV4_E8M0, "{}.dtype={}: want one of dsv4_dtype", name, dtype);
  DSV4_CHECK(rank >= 1 && rank <= DSV4_MAX_RANK, "{}.rank={}: want 1 to {}", name, rank,
             DSV4_MAX_RANK);
  TensorMeta meta;
  meta.dtype = kDTypes[dtype];
  meta.rank = rank;
  for (int axis = 0; axis < rank; ++axis) {
    const auto i = static_cast<size_t>(axis);
    DSV4_CHECK(tensor.shape[i] >= 0, "{}.shape[{}] is {}", name, axis, tensor.shape[i]);
    meta.shape[i] = tensor.shape[i];
    meta.stride[i] = tensor.stride[i];
  }
  DSV4_CHECK(
      reinterpret_cast<uintptr_t>(tensor.data) % static_cast<uintptr_t>(item_bytes(meta.dtype)) ==
          0,
      "{} is at {}: want a multiple of {} bytes", name, tensor.data, item_bytes(meta.dtype));
  return {meta, static_cast<std::byte*>(tensor.data)};
}

}  // namespace

void Tensors::join(const char* name, const dsv4_tensor& tensor) {
  DSV4_CHECK(tensor.device >= DSV4_HOST, "{}.device={}: want a CUDA ordinal or DSV4_HOST ({})",
             name, tensor.device, DSV4_HOST);
  if (first_.empty()) first_ = name, device_ = tensor.device;
  DSV4_CHECK(tensor.device == device_, "{} is {}, {} is {}", name, text(tensor.device), first_,
             text(device_));
}

TensorView Tensors::view_of(const char* name, const dsv4_tensor& tensor,
                            std::initializer_list<DType> dtypes,
                            std::initializer_list<DimArg> shape) {
  if (absent(tensor)) return {};
  name = name_of(name, tensor);
  const TensorView view = checked_view(name, tensor);
  expect(name, view, dtypes, shape);
  join(name, tensor);
  return view;
}

}  // namespace dsv4::capi
