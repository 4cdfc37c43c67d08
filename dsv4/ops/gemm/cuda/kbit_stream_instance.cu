// The kernels of kbit_stream.h for one K and one type of x: 8 and 16 rows of x, whole tiles or any.
//
// Instances: 2, bf16 | 3, bf16 | 4, bf16 | 5, bf16 | 2, f16 | 3, f16 | 4, f16 | 5, f16

#include "dsv4/device/launch.cuh"
#include "dsv4/ops/gemm/cuda/kbit_stream/call.cuh"
#include "dsv4/ops/gemm/cuda/kbit_stream/kernel.cuh"

namespace dsv4::gemm::kbit_stream {

template <int K, class X>
void launch_kbit_stream(Device& device, const Params& params) {
  const auto run = [&]<int kTokens, bool kWhole>() {
    launch(device, "kbit_stream", kbit_stream_kernel<K, X, kTokens, kWhole>,
           {.grid = params.plan.ctas,
            .block = kThreads,
            .grid_y = (params.tokens + kTokens - 1) / kTokens,
            .shared = Memory<K, kTokens>::kAt.bytes,
            .pdl = true},
           params);
  };
  with_config(params, run);
}
template void launch_kbit_stream<DSV4_INSTANCE>(Device& device, const Params& params);

}  // namespace dsv4::gemm::kbit_stream
