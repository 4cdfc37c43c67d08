// Numbers of a request body with their ranges checked. Absent is nothing; everything else is a
// RequestError that names the field and the range.

#pragma once

#include <cstdint>
#include <optional>

#include "dsv4/chat/fields.h"

namespace dsv4 {

// In [low, high]. A double without a fraction counts as an integer, as clients of weakly typed
// languages send it.
std::optional<int64_t> read_integer(const Field& field, int64_t low, int64_t high);

enum class LowEnd { kIncluded, kExcluded };
std::optional<double> read_number(const Field& field, double low, double high,
                                  LowEnd end = LowEnd::kIncluded);

}  // namespace dsv4
