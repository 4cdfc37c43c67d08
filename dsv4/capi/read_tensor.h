// Tensors of a call to host memory and back, for what a call has to know before it enqueues, or to
// report after it. On a GPU these wait for the stream, which cannot be captured meanwhile.
//
// The quantizer needs them:
//
//   the codebook   is an argument of its kernel
//   a block        that is refused becomes an error of the call
//   a tensor scale is a result on the host
//
// Products never call them.

#pragma once

#include "dsv4/ops/op.h"
#include "dsv4/tensor/tensor.h"

namespace dsv4::capi {

// `tensor` has no gaps; `to` and `from` have room for its bytes.
void read_tensor(const Context& context, const ConstTensorView& tensor, void* to);
void write_tensor(const Context& context, const TensorView& tensor, const void* from);

// largest_magnitude() of quantize_kbit.h on `device`, a CUDA ordinal or DSV4_HOST; waits for the
// whole device, since the call has no stream.
float largest_magnitude_at(int device, const ConstTensorView& x);

}  // namespace dsv4::capi
