// CPU row of experts.h.

#pragma once

#include "dsv4/ops/experts/experts.h"

namespace dsv4 {

void experts_cpu(const Context& context, const ExpertsArgs& args);

}  // namespace dsv4
