// The implementations of hc_boundary.h, for its table.

#pragma once

#include "dsv4/ops/hc_boundary/hc_boundary.h"

namespace dsv4 {

void hc_boundary_parts(const Context& context, const HcBoundaryArgs& args);

}  // namespace dsv4
