#include "dsv4/ops/model/moe/sm90_fused/instance.cuh"

namespace dsv4::moe_kernel::sm90_fused {

template void launch_gate_up<3>(Device& device, few_gemm::Format shared, const GateUpParams& p);
template void launch_down<3>(Device& device, int tokens, const DownParams& p);

}  // namespace dsv4::moe_kernel::sm90_fused
