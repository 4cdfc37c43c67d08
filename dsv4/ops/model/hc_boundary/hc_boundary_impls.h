// The implementations of hc_boundary.h, for its table. The CUDA ones exist in CUDA builds only.

#pragma once

#include "dsv4/ops/model/hc_boundary/hc_boundary.h"

namespace dsv4 {

const char* hc_boundary_sm90_few_reject(const Context& context, const HcBoundaryArgs& args);
void hc_boundary_sm90_few(const Context& context, const HcBoundaryArgs& args);
void hc_boundary_parts(const Context& context, const HcBoundaryArgs& args);

}  // namespace dsv4
