// The implementations of index_select.h, for its table. The CUDA ones exist in CUDA builds only.

#pragma once

#include "dsv4/ops/model/index_select/index_select.h"

namespace dsv4 {

// Scores are computed for this many queries at a time: [64, max_visible] f32 fits in cache.
inline constexpr int64_t kScoreTile = 64;

const char* index_select_sm90_few_reject(const Context& context, const IndexSelectArgs& args);
void index_select_sm90_few(const Context& context, const IndexSelectArgs& args);
void index_select_parts(const Context& context, const IndexSelectArgs& args);

}  // namespace dsv4
