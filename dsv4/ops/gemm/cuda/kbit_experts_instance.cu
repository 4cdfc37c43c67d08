// The kernels of kbit_experts.h for one type of x and one K: one weight, or gate and up; whole
// blocks, or any. The type comes first because instances of a folder need names of their own:
// those of kbit_stream_instance.cu begin with K.
//
// Instances: bf16, 2 | bf16, 3 | bf16, 4 | bf16, 5 | f16, 2 | f16, 3 | f16, 4 | f16, 5

#include "dsv4/device/launch.cuh"
#include "dsv4/ops/gemm/cuda/kbit_experts/call.cuh"
#include "dsv4/ops/gemm/cuda/kbit_experts/kernel.cuh"

namespace dsv4::gemm::kbit_experts {

template <class X, int K>
void launch_kbit_experts(Device& device, const Params& params, int sides) {
  const auto run = [&]<int kSides, bool kWhole>() {
    launch(
        device, kSides == 2 ? "kbit_experts_gate_up" : "kbit_experts",
        kbit_experts_kernel<K, X, kSides, kWhole>,
        {.grid = params.plan.ctas, .block = kThreads, .shared = Memory<K>::kAt.bytes, .pdl = true},
        params);
  };
  with_config(params, sides, run);
}
template void launch_kbit_experts<DSV4_INSTANCE>(Device& device, const Params& params, int sides);

}  // namespace dsv4::gemm::kbit_experts
