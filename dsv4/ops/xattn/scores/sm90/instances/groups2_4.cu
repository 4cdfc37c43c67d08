#include "dsv4/ops/xattn/scores/sm90/launch.cuh"

namespace dsv4::xattn_scores_kernel::sm90 {

void run_groups2(Device& device, const XattnScoresArgs& args) {
  run_dtypes<2>(device, args);
}
void run_groups4(Device& device, const XattnScoresArgs& args) {
  run_dtypes<4>(device, args);
}

}  // namespace dsv4::xattn_scores_kernel::sm90
