// The Hopper implementation of xattn_scores.h (sm_90a: wgmma, TMA, clusters).

#pragma once

#include "dsv4/ops/xattn/scores/xattn_scores.h"

namespace dsv4::xattn_scores_kernel::sm90 {

const char* reject(const Context& context, const XattnScoresArgs& args);
void run(const Context& context, const XattnScoresArgs& args);

}  // namespace dsv4::xattn_scores_kernel::sm90
