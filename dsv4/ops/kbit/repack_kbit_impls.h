// The implementations of repack_kbit.h.

#pragma once

#include "dsv4/ops/kbit/repack_kbit.h"

namespace dsv4 {

void repack_kbit_cpu(const Context& context, const RepackKbitArgs& args);

}  // namespace dsv4
