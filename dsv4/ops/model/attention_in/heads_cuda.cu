#include "dsv4/base/bits.h"
#include "dsv4/device/launch.cuh"
#include "dsv4/ops/model/attention_in/heads.cuh"
#include "dsv4/ops/model/attention_in/queries.h"

namespace dsv4 {

namespace kernel = attention_in_kernel;

const char* finish_heads_cuda_reject(const Context& context, const AttentionInArgs& args) {
  if (context.numerics != Numerics::kOfficial) return "rounds every step to bf16";
  if (args.q.dtype != DType::kBF16) return "wants bf16 q";
  if (args.q.dim(2) != kernel::kHeadWidth || args.freqs.dim(0) != kernel::kHeadPairs)
    return "wants heads of 512 values of which 64 rotate";
  if (!packs(args.q, 8)) return "rows are not on 16 bytes";
  return nullptr;
}

void finish_heads_cuda(const Context& context, const AttentionInArgs& args) {
  launch(*context.device, "finish_heads", kernel::finish_heads_kernel<kernel::SumOfLanes>,
         {.grid = args.q.dim(0),
          .block = kernel::kHeadWarps * kWarp,
          .grid_y = ceil_div(args.q.dim(1), kernel::kHeadsOfCta),
          .pdl = true},
         kernel::HeadParams{.q = args.q.as<bf16>(),
                            .heads = static_cast<int>(args.q.dim(1)),
                            .positions = args.positions.as<int32_t>(),
                            .freqs = args.freqs.as<float>(),
                            .eps = args.norm_eps});
}

}  // namespace dsv4
