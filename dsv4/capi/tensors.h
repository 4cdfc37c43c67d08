// The tensors of one C call as views of the library.

#pragma once

#include <string>

#include "dsv4/tensor/tensor.h"
#include "dsv4_kernels.h"

namespace dsv4::capi {

inline bool absent(const dsv4_tensor& tensor) {
  return tensor.rank == 0 && tensor.data == nullptr;
}

// Collects the device that the tensors of a call agree on.
class Tensors {
 public:
  // The view of `tensor`, checked as expect() does under the tensor's own name or else `name`; an
  // empty view where it is absent. Throws kInvalidArgument for a dtype or rank that the header does
  // not have, a pointer on no multiple of the element size, and another device than that of the
  // tensors before.
  TensorView view_of(const char* name, const dsv4_tensor& tensor,
                     std::initializer_list<DType> dtypes, std::initializer_list<DimArg> shape);

  // CUDA ordinal or DSV4_HOST; without any tensor DSV4_HOST.
  int device() const { return device_; }

 private:
  void join(const char* name, const dsv4_tensor& tensor);

  std::string first_;  // name of the first tensor; "": none yet
  int device_ = DSV4_HOST;
};

inline const char* name_of(const char* name, const dsv4_tensor& tensor) {
  return tensor.name == nullptr ? name : tensor.name;
}

}  // namespace dsv4::capi
