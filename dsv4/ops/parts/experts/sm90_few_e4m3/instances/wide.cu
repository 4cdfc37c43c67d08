#include "dsv4/ops/parts/experts/sm90_few_e4m3/instance.cuh"

namespace dsv4::experts_few_e4m3 {

template void launch_gate_up<2, kWideColumns>(Device& device, const Params& p);
template void launch_gate_up<3, kWideColumns>(Device& device, const Params& p);
template void launch_gate_up<4, kWideColumns>(Device& device, const Params& p);

}  // namespace dsv4::experts_few_e4m3
