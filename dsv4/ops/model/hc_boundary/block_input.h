// The input x of a block as the first products of the block take it, together with the boundary
// before the block, if there is one: Q8 of x, or x computed in the kernel of the products. For the
// implementations sm90_few of blocks, in CUDA builds.

#pragma once

#include "dsv4/ops/gemm/sm90/small_m.h"
#include "dsv4/ops/model/hc_boundary/hc_boundary.h"

namespace dsv4 {

namespace gemm::boundary {
struct Params;  // gemm/x/boundary_params.cuh
}

// Computes the boundary, if it is given. Returns x as weights that take Q8 want it: with few tokens
// their kernel quantizes x, else the codes are in the workspace, as long as the caller's
// Scratch::Scope lives.
gemm::Activations quantized_input(const Context& context, const HcBoundaryArgs& boundary,
                                  const ConstTensorView& x);

// Computes the boundary, if it is given, and the products of x [t, k] bf16: with few tokens in two
// launches, of which the second also finishes the boundary (gemm/x/boundary.cuh).
void input_products(const Context& context, const HcBoundaryArgs& boundary,
                    const ConstTensorView& x, std::span<const gemm::Target> targets);

// The first kernel of the boundary alone, for kernels that finish it. reject_mix returns nullptr,
// or why it does not take the call. The partial sums that mix_boundary returns are in the
// workspace, as long as the caller's Scratch::Scope lives.
const char* reject_mix(const Context& context, const HcBoundaryArgs& boundary);
gemm::boundary::Params mix_boundary(const Context& context, const HcBoundaryArgs& boundary);

}  // namespace dsv4
