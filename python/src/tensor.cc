#include "tensor.h"

#include <nanobind/ndarray.h>

#include <algorithm>
#include <map>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

namespace dsv4::python {
namespace {

namespace nb = nanobind;

constexpr std::pair<std::string_view, dsv4_dtype> kTypes[] = {
    {"float32", DSV4_F32},        {"bfloat16", DSV4_BF16},
    {"float16", DSV4_F16},        {"float64", DSV4_F64},
    {"int32", DSV4_I32},          {"int64", DSV4_I64},
    {"int16", DSV4_I16},          {"int8", DSV4_I8},
    {"uint8", DSV4_U8},           {"bool", DSV4_BOOL},
    {"float8_e4m3fn", DSV4_E4M3}, {"float8_e8m0fnu", DSV4_E8M0}};

dsv4_dtype type_of(const char* name, std::string_view type) {
  for (const auto& [spelling, dtype] : kTypes)
    if (spelling == type) return dtype;
  refuse(std::string(name) + ": arrays of " + std::string(type) + " are not supported");
}

// torch.dtype objects live as long as torch does, so an address names a type. Guarded by the GIL.
dsv4_dtype torch_type(const char* name, nb::handle dtype) {
  static std::map<PyObject*, dsv4_dtype> known;
  const auto found = known.find(dtype.ptr());
  if (found != known.end()) return found->second;
  std::string type = nb::str(dtype).c_str();
  if (type.starts_with("torch.")) type.erase(0, 6);
  return known.emplace(dtype.ptr(), type_of(name, type)).first->second;
}

std::string dlpack_name(const nb::dlpack::dtype& type) {
  const auto code = static_cast<int>(type.code);
  const char* family = code == 0 ? "int" : code == 1 ? "uint" : code == 2 ? "float" : nullptr;
  if (code == 4) return "bfloat16";
  if (code == 6) return "bool";
  if (code == 10) return "float8_e4m3fn";  // DLPack 1.1
  if (family == nullptr) return "DLPack type " + std::to_string(code);
  return family + std::to_string(static_cast<int>(type.bits));
}

void set_rank(const char* name, size_t rank, dsv4_tensor* tensor) {
  if (rank > DSV4_MAX_RANK) {
    refuse(std::string(name) + ": want at most " + std::to_string(DSV4_MAX_RANK) + " axes, got " +
           std::to_string(rank));
  }
  tensor->rank = static_cast<int32_t>(rank);
}

void read_extents(nb::handle tuple, int32_t rank, int64_t* out) {
  for (int32_t i = 0; i < rank; ++i) out[i] = nb::cast<int64_t>(nb::handle(tuple)[i]);
}

void read_torch(nb::handle array, dsv4_tensor* tensor) {
  tensor->dtype = torch_type(tensor->name, nb::object(array.attr("dtype")));
  const nb::object shape(array.attr("shape")), stride(array.attr("stride")());
  set_rank(tensor->name, nb::len(shape), tensor);
  read_extents(shape, tensor->rank, tensor->shape);
  read_extents(stride, tensor->rank, tensor->stride);
  tensor->data = reinterpret_cast<void*>(nb::cast<uintptr_t>(array.attr("data_ptr")()));
  const int device = nb::cast<int>(array.attr("get_device")());
  tensor->device = device < 0 ? DSV4_HOST : device;
}

void read_dlpack(nb::handle array, dsv4_tensor* tensor) {
  nb::ndarray<nb::ro> imported;
  if (!nb::try_cast(array, imported)) {
    refuse(std::string(tensor->name) + ": want a tensor, got " +
           nb::type_name(array.type()).c_str());
  }
  tensor->dtype = type_of(tensor->name, dlpack_name(imported.dtype()));
  set_rank(tensor->name, imported.ndim(), tensor);
  for (size_t i = 0; i < imported.ndim(); ++i) {
    tensor->shape[i] = static_cast<int64_t>(imported.shape(i));
    tensor->stride[i] = imported.stride(i);
  }
  tensor->data = const_cast<void*>(static_cast<const void*>(imported.data()));
  const int device = imported.device_type();
  if (device != nb::device::cpu::value && device != nb::device::cuda::value) {
    refuse(std::string(tensor->name) + ": on a device that is neither CUDA nor the host (DLPack " +
           "device type " + std::to_string(device) + ")");
  }
  tensor->device = device == nb::device::cuda::value ? imported.device_id() : DSV4_HOST;
}

// Libraries write anything into the stride of an axis that has one element or none, and into all
// strides of a tensor without elements.
void settle_strides(dsv4_tensor* tensor) {
  const bool empty = std::count(tensor->shape, tensor->shape + tensor->rank, 0) > 0;
  int64_t packed = 1;
  for (int i = tensor->rank - 1; i >= 0; --i) {
    if (empty || tensor->shape[i] <= 1) tensor->stride[i] = packed;
    packed = tensor->stride[i] * std::max<int64_t>(1, tensor->shape[i]);
  }
}

}  // namespace

void refuse(const std::string& line) {
  throw nb::value_error(line.c_str());
}

dsv4_tensor tensor_of(const char* name, nb::handle array) {
  dsv4_tensor tensor = {};
  tensor.name = name;
  if (array.is_none()) return tensor;
  const bool torch = nb::hasattr(array, "data_ptr") && nb::hasattr(array, "get_device");
  torch ? read_torch(array, &tensor) : read_dlpack(array, &tensor);
  settle_strides(&tensor);
  return tensor;
}

dsv4_tensor without_axis(const dsv4_tensor& tensor, int axis) {
  if (axis >= tensor.rank || tensor.shape[axis] != 1) {
    refuse(std::string(tensor.name) + ": want 1 element on axis " + std::to_string(axis) +
           ", got " + text(tensor));
  }
  dsv4_tensor out = tensor;
  for (int i = axis; i + 1 < tensor.rank; ++i) {
    out.shape[i] = tensor.shape[i + 1];
    out.stride[i] = tensor.stride[i + 1];
  }
  --out.rank;
  return out;
}

std::string text(const dsv4_tensor& tensor) {
  std::string line = "[";
  for (int32_t i = 0; i < tensor.rank; ++i)
    line += (i > 0 ? ", " : "") + std::to_string(tensor.shape[i]);
  return line + "]";
}

}  // namespace dsv4::python
