// Hopper, kOfficial, packed rows of either format: wgmma over raw FP8 rows, both products
// transposed (docs/kernels/sparse_mla.md). K and V are f16 inside: exact for scales that are powers
// of two from 2^-15 to 2^7; others are off by 2^-11 (V3.2), smaller ones by 2^-16 at most in all.
// What is larger than f16 is computed in f32 with its chunk and heads. Weights are f16.

#include <algorithm>

#include "dsv4/device/alignment.h"
#include "dsv4/device/launch.cuh"
#include "dsv4/ops/sparse_mla/by_request.h"
#include "dsv4/ops/sparse_mla/sm90_fp8_call.cuh"
#include "dsv4/ops/sparse_mla/sparse_mla_cuda.h"

namespace dsv4 {
namespace {

using sm90_fp8::Params;
using sm90_fp8::Plan;

int64_t slots_of(const SparseMlaArgs& args) {
  return listed(args.window) + listed(args.compressed);
}
constexpr int64_t kMost = int64_t{1} << 30;  // numbers of queries and slots are ints on the device

const char* reject_list(const KvList& list, bool v32) {
  if (list.rows.rank == 0 || list.rows.numel() == 0) return nullptr;
  const KvPool& pool = list.pool;
  if (!pool.packed() || pool.layout.v32() != v32) return "wants packed rows of one format";
  if (pool.layout.nope != (v32 ? kV32Layout.nope : KvLayout{}.nope))
    return "wants rows of 448 + 64 or 512 + 64 values";
  if (!rows_on(pool.pages, 16)) return "pages are not on 16 bytes";
  return nullptr;
}

void run(const Context& context, const SparseMlaArgs& args, const Plan& plan) {
  Device& device = *context.device;
  const Params p = sm90_fp8::params(args, plan);
  if (p.queries == 0 || p.heads == 0) return;
  const int64_t grid = sm90_fp8::num_blocks(p, device.info().num_sms);
  sm90_fp8::with_kernel(p, sm90_fp8::is_v32(args), plan, [&](auto* kernel, int64_t shared) {
    launch(device, "sparse_mla fp8", kernel,
           {.grid = grid,
            .block = sm90_fp8::kThreads,
            .shared = shared,
            .cluster = p.chunks,
            .pdl = true},
           p);
  });
}

Plan plan_of(const Context& context, const SparseMlaArgs& args) {
  return sm90_fp8::plan_call(args.q.dim(0) * args.q.dim(1), static_cast<int>(args.q.dim(2)),
                             static_cast<int>(slots_of(args)), context.device->info().num_sms);
}
// With room for the window.
int64_t invariant_slots(const SparseMlaArgs& args) {
  const int64_t window = listed(args.window);
  return listed(args.compressed) +
         (window > 0 ? std::max<int64_t>(window, sm90_fp8::kInvariantWindow) : 0);
}
Plan invariant_plan_of(const SparseMlaArgs& args) {
  return sm90_fp8::plan_invariant(static_cast<int>(args.q.dim(2)),
                                  static_cast<int>(invariant_slots(args)));
}

}  // namespace

const char* sparse_mla_sm90_fp8_reject(const Context& context, const SparseMlaArgs& given) {
  const SparseMlaArgs args = by_request(given);
  const DeviceInfo& device = context.device->info();
  if (device.major != 9 || device.minor != 0) return "for Hopper";
  if (device.max_smem_per_block < sm90_fp8::kMaxShared ||
      device.reserved_smem_per_block != sm90_fp8::kSharedBase)
    return "shared memory is laid out otherwise";
  if (context.numerics != Numerics::kOfficial) return "f16 inside";
  if (args.q.dtype != DType::kBF16) return "wants bf16 q";
  const int64_t d = args.q.dim(-1);
  if ((d != KvLayout{}.width() && d != kV32Layout.width()) || args.out.dim(-1) != sm90_fp8::kWidthV)
    return "wants 512 or 576 dims, 512 of them values";
  if (!rows_on(args.q, 16) || !rows_on(args.out, 16)) return "q or out is not on 16 bytes";
  if (args.q.dim(0) * args.q.dim(1) * args.q.dim(2) > kMost || slots_of(args) > kMost)
    return "too many queries or slots";
  if (const char* reason = reject_list(args.window, sm90_fp8::is_v32(args))) return reason;
  return reject_list(args.compressed, sm90_fp8::is_v32(args));
}

void sparse_mla_sm90_fp8(const Context& context, const SparseMlaArgs& given) {
  const SparseMlaArgs args = by_request(given);
  run(context, args, plan_of(context, args));
}

const char* sparse_mla_sm90_fp8_invariant_reject(const Context& context,
                                                 const SparseMlaArgs& args) {
  if (listed(args.window) > sm90_fp8::kInvariantWindow && listed(args.compressed) > 0)
    return "more than 128 slots of the window before others";
  if (invariant_slots(args) > sm90_fp8::kMaxChunks * sm90_fp8::kInvariantChunk)
    return "more than 16384 slots";
  return sparse_mla_sm90_fp8_reject(context, args);
}
void sparse_mla_sm90_fp8_invariant(const Context& context, const SparseMlaArgs& given) {
  const SparseMlaArgs args = by_request(given);
  run(context, args, invariant_plan_of(args));
}

}  // namespace dsv4
