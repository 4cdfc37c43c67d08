// The tensor core kernels by format; the k-bit ones in a file of their own, because they take long
// to compile.

#pragma once

#include "dsv4/ops/linear/product_cuda.h"

namespace dsv4::product {

void mma_plain(Device& device, const Product& product);  // BF16, FP8, MXFP4, NVFP4
void mma_kbit(Device& device, const Product& product);

// Tiles of 8 or 16 pairs. x may be E4M3.
void few_plain(Device& device, const Product& product);
void few_kbit(Device& device, const Product& product);

}  // namespace dsv4::product
