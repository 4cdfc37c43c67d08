// The portable CUDA implementation of xattn_scores.h: any width, S from 4 on, f32 arithmetic.

#pragma once

#include "dsv4/ops/xattn/scores/xattn_scores.h"

namespace dsv4::xattn_scores_kernel::cuda {

const char* reject(const Context& context, const XattnScoresArgs& args);
void run(const Context& context, const XattnScoresArgs& args);

}  // namespace dsv4::xattn_scores_kernel::cuda
