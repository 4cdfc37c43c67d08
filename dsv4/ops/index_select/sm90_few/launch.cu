#include "dsv4/device/alignment.h"
#include "dsv4/device/launch.cuh"
#include "dsv4/ops/index_select/index_select_impls.h"
#include "dsv4/ops/index_select/sm90_few/kernel.cuh"

namespace dsv4 {

namespace few = index_select_kernel::sm90_few;

const char* index_select_sm90_few_reject(const Context& context, const IndexSelectArgs& args) {
  if (context.device->info().major != 9) return "clusters of CTAs are Hopper's";
  if (context.numerics != Numerics::kOfficial) return "bf16 inside";
  if (args.q.dim(0) > few::kMaxQueries) return "more than 64 queries";
  if (args.max_visible > few::kMaxVisible) return "more than 65536 entries";
  if (args.indices.dim(1) == 0) return "selects nothing";
  if (!args.keys.packed() || args.q.dim(2) != index_mma::kWidth)
    return "wants packed keys of 128 values";
  if (args.q.dtype != DType::kBF16) return "wants bf16 q";
  if (args.q.dim(1) > index_mma::kMaxHeads) return "more than 128 heads";
  if (!rows_on(args.keys.pages, 16)) return "pages are not on 16 bytes";
  if (!rows_on(args.q, 16)) return "q is not on 16 bytes";
  return nullptr;
}

void index_select_sm90_few(const Context& context, const IndexSelectArgs& args) {
  const few::Params params = few::make_params(args);
  // Two tiles share the loads of the query from shared memory, once a warp has more than one.
  const bool single = args.max_visible <= few::kCtas * few::kWarps * index_mma::kTileKeys;
  with_float_type(args.weights.dtype, [&](auto w) {
    using W = decltype(w);
    launch(*context.device, "index_select",
           single ? few::select_kernel<1, W> : few::select_kernel<2, W>,
           {.grid = few::kCtas * args.q.dim(0),
            .block = few::kThreads,
            .shared = few::shared_bytes(params),
            .cluster = few::kCtas,
            .pdl = true},
           params);
  });
}

}  // namespace dsv4
