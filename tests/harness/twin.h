// A tensor in two places: where the test fills and reads it, and where CUDA code runs fast. Without
// a GPU they are one. For tests too large for an Arena, whose pages a GPU reads through the bus;
// there is no guard page here.

#pragma once

#include <cstdint>
#include <initializer_list>

#include "dsv4/tensor/tensor.h"

namespace dsv4::test {

class Twin {
 public:
  Twin() = default;
  ~Twin();
  Twin(const Twin&) = delete;
  Twin& operator=(const Twin&) = delete;

  // Takes another shape, with contents that mean nothing. Memory is kept from shape to shape and
  // grows to the largest of them.
  void reshape(DType dtype, std::initializer_list<int64_t> shape);

  const TensorView& host() const { return host_; }
  const TensorView& device() const { return device_; }
  void upload() const;
  void download() const;

 private:
  void release();

  TensorView host_, device_;
  int64_t capacity_ = 0;
};

}  // namespace dsv4::test
