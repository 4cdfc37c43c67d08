// Kernels for bf16 and f16 of one number of groups of S tokens in a block.
// Instances: 2 | 4 | 8 | 16 | 32

#include "dsv4/ops/xattn/scores/sm90/launch.cuh"

namespace dsv4::xattn_scores_kernel::sm90 {

template void run_groups<DSV4_INSTANCE>(Device&, const XattnScoresArgs&);

}  // namespace dsv4::xattn_scores_kernel::sm90
