// Implementation sm90_fp8: q and k rounded to e4m3 (values beyond 448 saturate), then the kernel of
// sm90 on FP8 tensor cores: half of its products' time. Scores are off by some percent, so it is
// chosen by name only. The page of XAttention in docs/kernels says how far masks agree.

#pragma once

#include "dsv4/ops/xattn/scores/xattn_scores.h"

namespace dsv4::xattn_scores_kernel::sm90_fp8 {

const char* reject(const Context& context, const XattnScoresArgs& args);
void run(const Context& context, const XattnScoresArgs& args);

}  // namespace dsv4::xattn_scores_kernel::sm90_fp8
