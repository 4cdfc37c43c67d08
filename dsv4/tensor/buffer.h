// Owning memory for one tensor, on the host unless another Memory is named.

#pragma once

#include <cstdint>
#include <initializer_list>
#include <memory>

#include "dsv4/tensor/memory.h"
#include "dsv4/tensor/tensor.h"

namespace dsv4 {

struct ReleaseMemory {
  Memory* memory = nullptr;
  void operator()(std::byte* p) const { memory->release(p); }
};

class Buffer {
 public:
  Buffer() = default;
  Buffer(DType dtype, std::initializer_list<int64_t> shape,
         Memory& memory = host_memory());  // zero-filled

  const TensorView& view() const { return view_; }
  operator TensorView() const { return view_; }       // NOLINT: a buffer is used as its view
  operator ConstTensorView() const { return view_; }  // NOLINT
  template <class T>
  T* as() const {
    return view_.as<T>();
  }
  bool empty() const { return view_.empty(); }

 private:
  std::unique_ptr<std::byte, ReleaseMemory> memory_;
  TensorView view_;
};

}  // namespace dsv4
