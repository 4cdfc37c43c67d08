// Which rank of how many, and its share of what is cut (docs/spec/several-gpus.md 2.1): of a
// dimension of U units, rank r of N owns the units [floor(r U / N), floor((r + 1) U / N)). Nothing
// is padded; a rank may own no unit.

#pragma once

#include <algorithm>
#include <cstdint>

#include "dsv4/base/bits.h"

namespace dsv4 {

// How ranks share the routed experts of a layer: each has some rows of every expert, or some of the
// experts as a whole (docs/adr/0039).
enum class ExpertsPlacement : uint8_t { kSliced, kWhole };
const char* name(ExpertsPlacement placement);

struct ShardId {
  int rank = 0, world = 1;

  bool operator==(const ShardId&) const = default;
  bool whole() const { return world == 1; }
  int64_t first_unit(int64_t units) const { return units * rank / world; }
  int64_t end_unit(int64_t units) const { return units * (rank + 1) / world; }

  // This rank's share of n rows cut in units of `unit` rows, of which the last may be shorter.
  struct Rows {
    int64_t begin, end;
    int64_t count() const { return end - begin; }
  };
  Rows rows(int64_t n, int64_t unit) const {
    const int64_t units = ceil_div(n, unit);
    return {std::min(n, first_unit(units) * unit), std::min(n, end_unit(units) * unit)};
  }
};

}  // namespace dsv4
