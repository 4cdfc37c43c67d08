// CPU row of sparse_mla.h.

#pragma once

#include "dsv4/ops/sparse_mla/sparse_mla.h"

namespace dsv4 {

void sparse_mla_cpu(const Context& context, const SparseMlaArgs& args);

}  // namespace dsv4
