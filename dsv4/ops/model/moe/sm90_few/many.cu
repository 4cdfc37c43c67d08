#include "dsv4/ops/model/moe/sm90_few/many.cuh"

#include "dsv4/base/bits.h"
#include "dsv4/device/launch.cuh"
#include "dsv4/device/pack.cuh"
#include "dsv4/ops/gemm/sm90/large_m.h"
#include "dsv4/ops/model/moe/sm90_few/launch.cuh"

namespace dsv4::moe_kernel::sm90_few {

bool takes_many(const Context& context, const MoeArgs& args, const Intermediates& temporaries) {
  return gemm::large_m::takes(context, args.x.dim(0), gemm::large_m::kFewForTargets) &&
         shared_expert(args).w1.format == WeightFormat::kFp8Block &&
         packs(temporaries.hidden, gemm::kRun);
}

void run_many_inputs(const Context& context, const MoeArgs& args,
                     const gemm::Activations& quantized, const Intermediates& temporaries) {
  Device& device = *context.device;
  const int64_t t = args.x.dim(0), inner = temporaries.hidden.dim(1);
  const Scratch::Scope scope(device.workspace());
  const TensorView gate_up = device.workspace().take(DType::kBF16, {t, 2 * inner});
  InputTargets targets(args, temporaries);
  targets.all[0].out = gate_up.slice(1, 0, inner);
  targets.all[1].out = gate_up.slice(1, inner, 2 * inner);
  gemm::large_m::run(context, args.x, quantized, targets.all);
  launch(device, "moe_hidden", hidden_kernel,
         {.grid = t,
          .block = kHiddenThreads,
          .grid_y = ceil_div(inner, int64_t{gemm::kRun * kHiddenThreads}),
          .pdl = true},
         HiddenParams{.gate_up = gate_up.as<bf16>(),
                      .hidden = temporaries.hidden.as<bf16>(),
                      .hidden_stride = temporaries.hidden.row_stride(),
                      .inner = static_cast<int>(inner),
                      .limit = args.swiglu_limit > 0 ? args.swiglu_limit : HUGE_VALF});
}

void run_many_down(const Context& context, const gemm::Product& down) {
  gemm::large_m::run(context, down);
}

}  // namespace dsv4::moe_kernel::sm90_few
