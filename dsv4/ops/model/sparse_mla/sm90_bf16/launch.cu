// Implementation sm90_bf16: what it accepts, and the launch (kernel.cuh).

#include "dsv4/ops/model/sparse_mla/sm90_bf16/launch.cuh"

#include "dsv4/device/alignment.h"
#include "dsv4/device/launch.cuh"
#include "dsv4/ops/model/sparse_mla/sparse_mla.h"

namespace dsv4::sparse_mla_kernel::sm90_bf16 {
namespace {

const char* reject_list(const KvList& list) {
  if (list.topk() == 0) return nullptr;
  if (list.pool.pages.dtype != DType::kBF16) return "wants bf16 rows";
  if (!rows_on(list.pool.pages, 16)) return "pages are not on 16 bytes";
  return nullptr;
}

}  // namespace

const char* reject(const Context& context, const SparseMlaArgs& args) {
  if (context.numerics != Numerics::kOfficial) return "bf16 inside";
  // Key tiles span both lists, so the capacity of the first moves the second.
  if (context.need_batch_invariant && args.window.topk() > 0 && args.compressed.topk() > 0)
    return "two lists: bits depend on the first one's capacity";
  if (context.device->info().major != 9) return "wgmma is Hopper's";
  const int64_t d = args.q.dim(-1);
  if (args.q.dtype != DType::kBF16 || (d != 512 && d != 576) || args.out.dim(-1) != kDimV)
    return "wants bf16 q of 512 or 576 values, d_v 512";
  if (!rows_on(args.q, 16) || !rows_on(args.out, 16)) return "q or out is not on 16 bytes";
  if (args.q.numel() / d > INT32_MAX) return "more than 2^31 heads of queries";
  if (const char* reason = reject_list(args.window)) return reason;
  return reject_list(args.compressed);
}

void run(const Context& context, const SparseMlaArgs& args) {
  if (args.q.numel() == 0) return;
  const Params p = make_params(args);
  Device& device = *context.device;
  const Instance instance = select_instance(args);
  launch(device, "sparse_mla bf16", instance.kernel,
         {.grid = num_ctas(p, device.info().num_sms),
          .block = kThreads,
          .shared = instance.smem_bytes},
         p);
}

}  // namespace dsv4::sparse_mla_kernel::sm90_bf16
