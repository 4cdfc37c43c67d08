// Finds stored values that are no numbers: NaN and infinity. A damaged file or a failed conversion
// produces them, and a network that only selects by them (router, indexer) would hide them.

#pragma once

#include <cstdint>
#include <optional>

#include "dsv4/tensor/tensor.h"

namespace dsv4 {

// Index, in row-major order, of the first value that is NaN or infinite; nullopt: every value is a
// number. E4M3 and E8M0 have NaN codes; integers, U8 and Bool are always numbers. Any strides.
std::optional<int64_t> first_non_finite(const ConstTensorView& view);

// Finds NaN and +infinity only: scores of invisible entries are -infinity.
std::optional<int64_t> first_bad_score(const ConstTensorView& scores);

// "nan", "inf", "-inf" or the number at a row-major index. Float dtypes, E4M3 and E8M0.
double value_at(const ConstTensorView& view, int64_t index);

}  // namespace dsv4
