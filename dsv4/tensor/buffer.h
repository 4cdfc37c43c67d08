// Owning, 64-byte aligned host memory for one tensor.

#pragma once

#include <cstdint>
#include <cstdlib>
#include <initializer_list>
#include <memory>

#include "dsv4/tensor/tensor.h"

namespace dsv4 {

// Zero pages come lazily from the system, so a large reservation costs nothing until it is touched.
class Buffer {
 public:
  Buffer() = default;
  Buffer(DType dtype, std::initializer_list<int64_t> shape);  // zero-filled

  const TensorView& view() const { return view_; }
  operator TensorView() const { return view_; }       // NOLINT: a buffer is used as its view
  operator ConstTensorView() const { return view_; }  // NOLINT
  template <class T>
  T* as() const {
    return view_.as<T>();
  }
  bool empty() const { return view_.empty(); }

 private:
  struct Free {
    void operator()(std::byte* p) const { std::free(p); }
  };
  std::unique_ptr<std::byte, Free> memory_;
  TensorView view_;
};

}  // namespace dsv4
