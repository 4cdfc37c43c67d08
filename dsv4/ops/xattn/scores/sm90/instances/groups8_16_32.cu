#include "dsv4/ops/xattn/scores/sm90/launch.cuh"

namespace dsv4::xattn_scores_kernel::sm90 {

void run_groups8(Device& device, const XattnScoresArgs& args) {
  run_dtypes<8>(device, args);
}
void run_groups16(Device& device, const XattnScoresArgs& args) {
  run_dtypes<16>(device, args);
}
void run_groups32(Device& device, const XattnScoresArgs& args) {
  run_dtypes<32>(device, args);
}

}  // namespace dsv4::xattn_scores_kernel::sm90
