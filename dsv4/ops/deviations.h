// Where implementations leave out or move a rounding point of official numerics: what `dsv4 inspect
// ops` prints, and docs/numerics.md explains with its effect. An implementation that is not listed
// keeps all rounding points of its op's contract.

#pragma once

#include <span>
#include <string_view>

namespace dsv4 {

struct Deviation {
  std::string_view op, impl;
  std::string_view what;
};

std::span<const Deviation> official_deviations();
// Empty: none.
std::string_view official_deviation(std::string_view op, std::string_view impl);

}  // namespace dsv4
