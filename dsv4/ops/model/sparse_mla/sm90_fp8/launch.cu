// Implementations sm90_fp8 and sm90_fp8_invariant: what they accept, and the launch (kernel.cuh).

#include "dsv4/ops/model/sparse_mla/sm90_fp8/launch.cuh"

#include <algorithm>

#include "dsv4/device/alignment.h"
#include "dsv4/device/launch.cuh"
#include "dsv4/ops/model/sparse_mla/sparse_mla.h"

namespace dsv4::sparse_mla_kernel::sm90_fp8 {
namespace {

int64_t total_topk(const SparseMlaArgs& args) {
  return args.window.topk() + args.compressed.topk();
}
constexpr int64_t kMost = int64_t{1} << 30;  // queries and list positions are ints on the device

const char* reject_list(const KvList& list, bool v32) {
  if (list.indices.rank == 0 || list.indices.numel() == 0) return nullptr;
  const KvPool& pool = list.pool;
  if (!pool.packed() || pool.layout.v32() != v32) return "wants packed rows of one format";
  if (pool.layout.nope != (v32 ? kV32Layout.nope : KvLayout{}.nope))
    return "wants rows of 448 + 64 or 512 + 64 values";
  if (!rows_on(pool.pages, 16)) return "pages are not on 16 bytes";
  return nullptr;
}

void launch_plan(const Context& context, const SparseMlaArgs& args, const Plan& plan) {
  Device& device = *context.device;
  const Params p = make_params(args, plan);
  if (p.queries == 0 || p.heads == 0) return;
  const Instance instance = select_instance(p, is_v32(args), plan);
  launch(device, "sparse_mla fp8", instance.kernel,
         {.grid = num_ctas(p, device.info().num_sms),
          .block = kThreads,
          .shared = instance.smem_bytes,
          .cluster = p.cluster_size,
          .pdl = true},
         p);
}

Plan plan_of(const Context& context, const SparseMlaArgs& args) {
  return plan_call(args.q.dim(0) * args.q.dim(1), static_cast<int>(args.q.dim(2)),
                   static_cast<int>(total_topk(args)), context.device->info().num_sms);
}
// Positions of the longest list, with room for the whole window.
int64_t invariant_topk(const SparseMlaArgs& args) {
  const int64_t window = args.window.topk();
  return args.compressed.topk() + (window > 0 ? std::max<int64_t>(window, kInvariantWindow) : 0);
}
Plan invariant_plan_of(const Context& context, const SparseMlaArgs& args) {
  return plan_invariant(args.q.dim(0) * args.q.dim(1), static_cast<int>(args.q.dim(2)),
                        static_cast<int>(invariant_topk(args)), context.device->info().num_sms);
}

}  // namespace

const char* reject(const Context& context, const SparseMlaArgs& args) {
  const DeviceInfo& device = context.device->info();
  if (device.major != 9 || device.minor != 0) return "for Hopper";
  if (device.max_smem_per_block < kMaxSmem || device.reserved_smem_per_block != kSmemBase)
    return "shared memory is laid out otherwise";
  if (context.numerics != Numerics::kOfficial) return "f16 inside";
  if (args.q.dtype != DType::kBF16) return "wants bf16 q";
  const int64_t d = args.q.dim(-1);
  if ((d != KvLayout{}.width() && d != kV32Layout.width()) || args.out.dim(-1) != kDimV)
    return "wants 512 or 576 dims, 512 of them values";
  if (!rows_on(args.q, 16) || !rows_on(args.out, 16)) return "q or out is not on 16 bytes";
  const bool rotates = args.inverse_rope.positions.rank > 0;
  if (rotates && (is_v32(args) || args.inverse_rope.freqs.dim(0) != kRopePairs))
    return "rotates 64 dims back, of values with RoPE";
  if (args.q.dim(0) * args.q.dim(1) * args.q.dim(2) > kMost || total_topk(args) > kMost)
    return "too many queries or indices";
  if (const char* reason = reject_list(args.window, is_v32(args))) return reason;
  return reject_list(args.compressed, is_v32(args));
}

void run(const Context& context, const SparseMlaArgs& args) {
  launch_plan(context, args, plan_of(context, args));
}

}  // namespace dsv4::sparse_mla_kernel::sm90_fp8

namespace dsv4::sparse_mla_kernel::sm90_fp8_invariant {

const char* reject(const Context& context, const SparseMlaArgs& args) {
  if (args.window.topk() > sm90_fp8::kInvariantWindow && args.compressed.topk() > 0)
    return "more than 128 window indices before compressed ones";
  if (sm90_fp8::invariant_topk(args) > sm90_fp8::kMostInvariantKeys)
    return "more than 40960 indices";
  return sm90_fp8::reject(context, args);
}

void run(const Context& context, const SparseMlaArgs& args) {
  sm90_fp8::launch_plan(context, args, sm90_fp8::invariant_plan_of(context, args));
}

}  // namespace dsv4::sparse_mla_kernel::sm90_fp8_invariant
