// Checks of the Hopper implementation and choice of its kernel (launch.cuh).

#include "dsv4/ops/xattn/scores/xattn_scores.h"

#include <algorithm>

#include "dsv4/device/alignment.h"
#include "dsv4/device/device.h"
#include "dsv4/device/error.h"
#include "dsv4/ops/xattn/scores/sm90/plan.h"

namespace dsv4::xattn_scores_kernel::sm90 {
namespace {

using Run = void (*)(Device&, const XattnScoresArgs&);

Run kernel_for(const XattnScoresArgs& args) {
  switch (args.block / args.stride) {
    case 2:
      return run_groups<2>;
    case 4:
      return run_groups<4>;
    case 8:
      return run_groups<8>;
    case 16:
      return run_groups<16>;
    case 32:
      return run_groups<32>;
    default:
      return nullptr;
  }
}

}  // namespace

const char* reject(const Context& context, const XattnScoresArgs& args) {
  if (context.device->info().major != 9) return "wgmma is Hopper's";
  if (args.q.dtype == DType::kF32) return "wants bf16 or f16";
  if (args.q.dim(2) % 64 != 0 || args.q.dim(2) == 0) return "wants a multiple of 64 columns";
  if (kernel_for(args) == nullptr) return "wants 2 to 32 groups of S tokens in a block";
  if (args.q.dim(0) < args.stride) return "fewer queries than S";
  if (!args.page_table.empty()) {
    const int64_t page_size = args.k.dim(1);
    if (!is_pow2(page_size) || page_size < 8 * args.stride)
      return "wants pages of a power of two, at least 8 S positions";
    if (args.k.dim(0) == 0) return "no pages";
  } else if (args.k.dim(0) < args.stride) {
    return "fewer keys than S";
  }
  const size_t k_heads = args.page_table.empty() ? 1 : 2;
  if (args.q.stride[1] != args.q.dim(2) || args.k.stride[k_heads] != args.k.dim(-1))
    return "wants adjacent heads";
  if (!rows_on(args.q, 16) || !rows_on(args.k, 16)) return "q or k is not on 16 bytes";
  if (args.batch.size() * args.q.dim(1) * args.sums.dim(2) > INT32_MAX / 2)
    return "more than 2^30 query blocks";
  return nullptr;
}

void run(const Context& context, const XattnScoresArgs& args) {
  Device& device = *context.device;
  if (args.sums.numel() == 0) return;
  kernel_for(args)(device, args);
}

}  // namespace dsv4::xattn_scores_kernel::sm90
