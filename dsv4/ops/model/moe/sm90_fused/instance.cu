// The two kernels of one kind of image.
// Instances: 2, ImageScale::kE4M4 | 3, ImageScale::kE4M4 | 4, ImageScale::kE4M4
// Instances: 4, ImageScale::kUe8m0 | 4, ImageScale::kE4M3

#include "dsv4/device/launch.cuh"
#include "dsv4/ops/model/moe/sm90_fused/down.cuh"
#include "dsv4/ops/model/moe/sm90_fused/gate_up.cuh"

namespace dsv4::moe_kernel::sm90_fused {

template <int K, ImageScale kScale>
LaunchShape launch_shape(int64_t ctas) {
  return {.grid = ctas, .block = kThreads, .shared = sizeof(Shared<K, kScale>), .pdl = true};
}

template <int K, ImageScale kScale>
void launch_gate_up(Device& device, gemm::Format shared, const GateUpParams& p) {
  with_shared_config(shared, [&](auto config) {
    launch(device, "moe_gate_up", gate_up_kernel<K, kScale, decltype(config)>,
           launch_shape<K, kScale>(device.info().num_sms), p);
  });
}

template <int K, ImageScale kScale>
void launch_down(Device& device, int tokens, const DownParams& p) {
  launch(device, "moe_sums", tokens == 1 ? down_kernel<K, kScale, 1> : down_kernel<K, kScale, 2>,
         launch_shape<K, kScale>(ceil_div(p.routed.rows, kDownRows)), p);
}

template <int K, ImageScale kScale>
void launch_down_with_shared(Device& device, const DownParams& p) {
  using C = gemm::Config<gemm::Format::kFp8, kPairs>;
  launch(device, "moe_output", down_kernel<K, kScale, 1, C>,
         launch_shape<K, kScale>(ceil_div(p.routed.rows, DownShape<1, C>::kRows)), p);
}

template void launch_gate_up<DSV4_INSTANCE>(Device& device, gemm::Format shared,
                                            const GateUpParams& p);
template void launch_down<DSV4_INSTANCE>(Device& device, int tokens, const DownParams& p);
template void launch_down_with_shared<DSV4_INSTANCE>(Device& device, const DownParams& p);

}  // namespace dsv4::moe_kernel::sm90_fused
