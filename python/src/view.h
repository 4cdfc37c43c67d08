// What an array of any library is, read without copying: pointer, kind of element, shape, strides
// in elements, device. torch tensors are asked directly (torch's DLPack export synchronises streams
// and knows no FP8 in older versions), everything else through DLPack.

#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <string>
#include <vector>

namespace dsv4::python {

enum class Kind : uint8_t { kF32, kBF16, kI32, kByte, kOther };  // kByte: FP8, int8, uint8

struct View {
  void* data = nullptr;
  Kind kind = Kind::kOther;
  std::string dtype;  // as its library writes it
  std::vector<int64_t> shape, strides;
  int device = -1;  // CUDA ordinal; -1: host

  int rank() const { return static_cast<int>(shape.size()); }
  int64_t dim(int axis) const { return shape[static_cast<size_t>(axis)]; }
  // Of an axis of one element a stride means nothing; it is given as if packed.
  int64_t stride(int axis) const { return strides[static_cast<size_t>(axis)]; }
  std::string text() const;  // "[4, 1, 64, 512] bfloat16 on cuda:0"
};

// Throws ValueError naming `name` when it is no array, or lies neither on the host nor on CUDA. The
// array outlives the view.
View view_of(const char* name, nanobind::handle array);

}  // namespace dsv4::python
