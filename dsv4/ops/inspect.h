// All implementations of all ops and where they deviate, for `dsv4 inspect ops`, documentation and
// tests.

#pragma once

#include <span>
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

// Where an implementation leaves out or moves a rounding point of official numerics;
// docs/numerics.md explains each with its effect. An implementation that is not listed keeps all
// rounding points of its op's contract.
struct Deviation {
  std::string_view op, impl;
  std::string_view what;
};

std::span<const Deviation> official_deviations();
// Empty: none.
std::string_view official_deviation(std::string_view op, std::string_view impl);

}  // namespace dsv4
