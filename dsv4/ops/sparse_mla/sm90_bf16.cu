// sparse_mla.h on Hopper's tensor cores for pools of bf16 rows, as prefill reads them: d 512 or
// 576, d_v 512, any number of heads (64 at a time: fewer cost as much as 64).
//
//   block   a query and 64 of its heads, one after another; three warpgroups (sm90_bf16_plan.cuh)
//   keys    never split over blocks, so a query's bits depend on nothing else
//
// Rounds as kOfficial does, but the weights relative to the largest dot so far, not of all.

#include "dsv4/device/alignment.h"
#include "dsv4/device/launch.cuh"
#include "dsv4/ops/sparse_mla/sm90_bf16_call.cuh"
#include "dsv4/ops/sparse_mla/sparse_mla_cuda.h"

namespace dsv4 {
namespace sm90_bf16 {
namespace {

const char* reject_list(const KvList& list) {
  if (listed(list) == 0) return nullptr;
  if (list.pool.pages.dtype != DType::kBF16) return "wants bf16 rows";
  if (!rows_on(list.pool.pages, 16)) return "pages are not on 16 bytes";
  return nullptr;
}

}  // namespace
}  // namespace sm90_bf16

const char* sparse_mla_sm90_bf16_reject(const Context& context, const SparseMlaArgs& args) {
  using namespace sm90_bf16;
  if (context.numerics != Numerics::kOfficial) return "bf16 inside";
  // Tiles go over both lists, so the room of the first moves the second.
  if (context.need_batch_invariant && listed(args.window) > 0 && listed(args.compressed) > 0)
    return "two lists: bits depend on the first one's room";
  if (context.device->info().major != 9) return "wgmma is Hopper's";
  const int64_t d = args.q.dim(-1);
  if (args.q.dtype != DType::kBF16 || (d != 512 && d != 576) || args.out.dim(-1) != kValueWidth)
    return "wants bf16 q of 512 or 576 values, d_v 512";
  if (!rows_on(args.q, 16) || !rows_on(args.out, 16)) return "q or out is not on 16 bytes";
  if (args.q.numel() / d > INT32_MAX) return "more than 2^31 heads of queries";
  if (const char* reason = reject_list(args.window)) return reason;
  return reject_list(args.compressed);
}

void sparse_mla_sm90_bf16(const Context& context, const SparseMlaArgs& args) {
  using namespace sm90_bf16;
  if (args.q.numel() == 0) return;
  const Inputs in = inputs(by_request(args));
  Device& device = *context.device;
  with_kernel(args, [&](auto* kernel, int64_t shared) {
    launch(device, "sparse_mla bf16", kernel,
           {.grid = num_blocks(in, device.info().num_sms), .block = kThreads, .shared = shared},
           in);
  });
}

}  // namespace dsv4
