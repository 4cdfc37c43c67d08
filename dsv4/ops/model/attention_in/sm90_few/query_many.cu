// finish_many() of query.h.

#include "dsv4/base/bits.h"
#include "dsv4/device/launch.cuh"
#include "dsv4/ops/gemm/sm90/large_m.h"
#include "dsv4/ops/model/attention_in/sm90_few/query_finish.cuh"

namespace dsv4::attention_in_kernel::query {
namespace {

void finish_heads(Device& device, const AttentionInArgs& args, const float2* rotations) {
  launch(device, "finish_heads", finish_heads_kernel<SumOfRanks>,
         {.grid = args.q.dim(0),
          .block = kHeadWarps * kWarp,
          .grid_y = ceil_div(args.q.dim(1), kHeadsOfCta),
          .pdl = true},
         HeadParams{.q = args.q.as<bf16>(),
                    .heads = static_cast<int>(args.q.dim(1)),
                    .positions = args.positions.as<int32_t>(),
                    .freqs = args.freqs.as<float>(),
                    .eps = args.norm_eps,
                    .rotations = rotations});
}

void finish_index_heads(Device& device, const AttentionInArgs& args, const float2* rotations) {
  launch(device, "finish_index_heads", finish_index_heads_kernel,
         {.grid = args.index_q.dim(0), .block = kIndexHeadWarps * kWarp, .pdl = true},
         IndexHeadParams{.q = args.index_q.as<bf16>(),
                         .heads = static_cast<int>(args.index_q.dim(1)),
                         .rotations = rotations,
                         .factor = index_factor()});
}

}  // namespace
}  // namespace dsv4::attention_in_kernel::query

namespace dsv4 {

namespace kernel = attention_in_kernel::query;

bool takes_many(const Context& context, const AttentionInArgs& args) {
  return gemm::large_m::takes(context, args.q.dim(0), gemm::large_m::kFewTokens) &&
         args.weights.wq_b.format == WeightFormat::kFp8Block && packs(args.q, 8);
}

void finish_many(const Context& context, const AttentionInArgs& args,
                 const ConstTensorView& latent) {
  Device& device = *context.device;
  const Scratch::Scope scope(device.workspace());
  const int64_t t = args.q.dim(0);
  const kernel::StoredLatents stored = kernel::make_stored_latents(
      gemm::Format::kFp8, t, latent.dim(1), [&](DType dtype, std::initializer_list<int64_t> shape) {
        return device.workspace().take(dtype, shape);
      });
  kernel::normalize(device, args, latent, stored);
  // q: [n, heads, width] of the tokens from `first` on.
  const auto multiply = [&](const WeightView& weight, const TensorView& q, int64_t first) {
    const int64_t n = q.dim(0);
    gemm::large_m::run_whole_rows(context,
                                  {.in = {.x = stored.codes.slice(0, first, first + n),
                                          .x_scale = stored.scales.slice(0, first, first + n)},
                                   .weight = weight,
                                   .out = q.reshape({n, q.dim(1) * q.dim(2)})});
  };
  multiply(args.weights.wq_b, args.q, 0);
  kernel::finish_heads(device, args, stored.rotation_pairs());
  if (args.index_q.rank == 0 || args.index_q.dim(0) == 0) return;
  multiply(args.weights.indexer.wq_b, args.index_q, args.index_first);
  kernel::finish_index_heads(device, args,
                             stored.rotation_pairs() + args.index_first * kernel::kPairs);
}

}  // namespace dsv4
