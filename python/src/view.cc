#include "view.h"

#include <nanobind/ndarray.h>

#include <map>
#include <string_view>

namespace dsv4::python {
namespace {

namespace nb = nanobind;

Kind kind_of(std::string_view dtype) {
  if (dtype == "float32") return Kind::kF32;
  if (dtype == "bfloat16") return Kind::kBF16;
  if (dtype == "int32") return Kind::kI32;
  if (dtype == "uint8" || dtype == "int8" || dtype == "float8_e4m3fn") return Kind::kByte;
  return Kind::kOther;
}

struct TorchType {
  std::string name;
  Kind kind;
};

// torch.dtype objects live as long as torch does, so an address names a type. Guarded by the GIL.
const TorchType& torch_type(nb::handle dtype) {
  static std::map<PyObject*, TorchType> known;
  const auto found = known.find(dtype.ptr());
  if (found != known.end()) return found->second;
  std::string name = nb::str(dtype).c_str();
  if (name.starts_with("torch.")) name.erase(0, 6);
  const Kind kind = kind_of(name);
  return known.emplace(dtype.ptr(), TorchType{name, kind}).first->second;
}

void read_extents(nb::handle tuple, std::vector<int64_t>* out) {
  const auto n = static_cast<size_t>(nb::len(tuple));
  out->resize(n);
  for (size_t i = 0; i < n; ++i) (*out)[i] = nb::cast<int64_t>(nb::handle(tuple)[i]);
}

View view_of_torch(nb::handle tensor) {
  View view;
  const TorchType& type = torch_type(nb::object(tensor.attr("dtype")));
  view.kind = type.kind;
  view.dtype = type.name;
  read_extents(nb::object(tensor.attr("shape")), &view.shape);
  read_extents(nb::object(tensor.attr("stride")()), &view.strides);
  view.data = reinterpret_cast<void*>(nb::cast<uintptr_t>(tensor.attr("data_ptr")()));
  view.device = nb::cast<int>(tensor.attr("get_device")());
  return view;
}

std::string dlpack_name(const nb::dlpack::dtype& type) {
  const auto code = static_cast<int>(type.code);
  const char* family = code == 0 ? "int" : code == 1 ? "uint" : code == 2 ? "float" : nullptr;
  if (code == 4) return "bfloat16";
  if (code == 10) return "float8_e4m3fn";  // DLPack 1.1
  if (family == nullptr) return "dlpack type " + std::to_string(code);
  return family + std::to_string(static_cast<int>(type.bits));
}

View view_of_dlpack(const char* name, nb::handle array) {
  nb::ndarray<nb::ro> imported;
  if (!nb::try_cast(array, imported)) {
    throw nb::value_error(
        (std::string(name) + ": want a tensor, got " + nb::type_name(array.type()).c_str())
            .c_str());
  }
  View view;
  view.dtype = dlpack_name(imported.dtype());
  view.kind = kind_of(view.dtype);
  for (size_t i = 0; i < imported.ndim(); ++i) {
    view.shape.push_back(static_cast<int64_t>(imported.shape(i)));
    view.strides.push_back(imported.stride(i));
  }
  view.data = const_cast<void*>(static_cast<const void*>(imported.data()));
  const int device = imported.device_type();
  if (device != nb::device::cpu::value && device != nb::device::cuda::value) {
    throw nb::value_error((std::string(name) + ": on a device that is neither CUDA nor the host " +
                           "(DLPack device type " + std::to_string(device) + ")")
                              .c_str());
  }
  view.device = device == nb::device::cuda::value ? imported.device_id() : -1;
  return view;
}

// Libraries write anything into the stride of an axis that has one element or none.
void settle_strides(View* view) {
  int64_t packed = 1;
  for (size_t i = view->shape.size(); i-- > 0;) {
    if (view->shape[i] <= 1) view->strides[i] = packed;
    packed = view->strides[i] * (view->shape[i] < 1 ? 1 : view->shape[i]);
  }
}

}  // namespace

View view_of(const char* name, nb::handle array) {
  const bool torch = nb::hasattr(array, "data_ptr") && nb::hasattr(array, "get_device");
  View view = torch ? view_of_torch(array) : view_of_dlpack(name, array);
  settle_strides(&view);
  return view;
}

std::string View::text() const {
  std::string line = "[";
  for (size_t i = 0; i < shape.size(); ++i) {
    line += (i > 0 ? ", " : "") + std::to_string(shape[i]);
  }
  return line + "] " + dtype + (device < 0 ? " on the host" : " on cuda:" + std::to_string(device));
}

}  // namespace dsv4::python
