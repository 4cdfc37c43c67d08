// All op tables as rows of text, for `dsv4 inspect ops`, documentation and tests.

#pragma once

#include <string_view>
#include <vector>

#include "dsv4/ops/op.h"

namespace dsv4 {

struct OpRow {
  std::string_view op;
  std::string_view row;
  Arch arch;
  bool batch_invariant;
};

std::vector<OpRow> all_op_rows();

}  // namespace dsv4
