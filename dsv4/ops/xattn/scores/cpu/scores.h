// The CPU implementation of xattn_scores.h: any shape, f32 inside.

#pragma once

#include "dsv4/ops/xattn/scores/xattn_scores.h"

namespace dsv4::xattn_scores_kernel::cpu {

void run(const Context& context, const XattnScoresArgs& args);

}  // namespace dsv4::xattn_scores_kernel::cpu
