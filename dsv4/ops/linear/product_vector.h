// The vector kernels by format; each in a file of its own, because they take long to compile.

#pragma once

#include "dsv4/ops/linear/product_cuda.h"

namespace dsv4::product {

void vector_float(Device& device, const Product& product);  // F32, BF16, F16
void vector_fp8(Device& device, const Product& product);
void vector_fp4(Device& device, const Product& product);  // MXFP4, NVFP4
void vector_kbit(Device& device, const Product& product);

// Any shape, any alignment; slow.
void vector_any(Device& device, const Product& product);

}  // namespace dsv4::product
