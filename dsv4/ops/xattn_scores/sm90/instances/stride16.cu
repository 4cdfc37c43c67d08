#include "dsv4/ops/xattn_scores/sm90/launch.cuh"

namespace dsv4::xattn_scores_kernel::sm90 {

void run_stride16(Device& device, const XattnScoresArgs& args) {
  run_dtypes<16>(device, args);
}

}  // namespace dsv4::xattn_scores_kernel::sm90
