// All implementations of all ops, for `dsv4 inspect ops`, documentation and tests.

#pragma once

#include <string_view>
#include <vector>

#include "dsv4/ops/op.h"

namespace dsv4 {

struct OpImpl {
  std::string_view op;
  std::string_view impl;
  Arch arch;
  bool batch_invariant;
};

std::vector<OpImpl> all_op_impls();

// The implementation that a name of the release before this one means now; other names as they are.
std::string_view current_impl_name(std::string_view op, std::string_view impl);

}  // namespace dsv4
