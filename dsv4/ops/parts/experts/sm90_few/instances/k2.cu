#include "dsv4/ops/parts/experts/sm90_few/instance.cuh"

namespace dsv4::experts_few {

template void launch_gate_up<2>(Device& device, const Params& p);
template void launch_down<2>(Device& device, const Params& p);

}  // namespace dsv4::experts_few
