// Any library's array as a dsv4_tensor, without copying. torch tensors are asked directly (torch's
// DLPack export synchronizes streams and knows no FP8 in older versions), everything else through
// DLPack.

#pragma once

#include <nanobind/nanobind.h>

#include <string>

#include "dsv4_kernels.h"

namespace dsv4::python {

// None: an absent tensor. Strides of axes of one element, which mean nothing, are those of a packed
// array. `name` and the array outlive the tensor. Throws ValueError naming `name` when it is no
// array, has more than four axes or elements that dsv4_dtype does not list, or lies neither on the
// host nor on CUDA.
dsv4_tensor tensor_of(const char* name, nanobind::handle array);

// Without the axis; it must have one element.
dsv4_tensor without_axis(const dsv4_tensor& tensor, int axis);

std::string text(const dsv4_tensor& tensor);  // "[4, 1, 64, 512]"

[[noreturn]] void refuse(const std::string& line);  // throws ValueError

}  // namespace dsv4::python
