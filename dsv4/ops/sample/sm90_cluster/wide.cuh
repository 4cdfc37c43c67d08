// The kernel of sample.h with clusters of 16 CTAs, which not every GPU forms.

#pragma once

#include "dsv4/ops/sample/sample.h"

namespace dsv4::sampling {

// False: not for this call, or not on this GPU.
bool sample_wide(const Context& context, const SampleArgs& args);

}  // namespace dsv4::sampling
