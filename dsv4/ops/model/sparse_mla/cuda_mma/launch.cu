// Implementation cuda_mma: what it accepts, its workspace and the launches (kernel.cuh).

#include "dsv4/device/alignment.h"
#include "dsv4/device/launch.cuh"
#include "dsv4/ops/model/sparse_mla/cuda_mma/kernel.cuh"
#include "dsv4/ops/model/sparse_mla/make_index_lists.h"

namespace dsv4::sparse_mla_kernel::cuda_mma {
namespace {

constexpr int64_t kPartialBytes = 256ll << 20;  // workspace for the partials of a launch, about

template <int kMTiles, class Out>
void launch_kernel(Device& device, const Params& in, int64_t queries, Out* out) {
  launch(device, "sparse_mla", sparse_mla_cuda_mma_kernel<kMTiles, Out>,
         {.grid = queries,
          .block = kThreads,
          .grid_y = ceil_div(in.heads, 16 * kMTiles),
          .grid_z = in.num_splits,
          .shared = sizeof(Shared<16 * kMTiles>),
          .pdl = true},
         in, out);
}

int num_splits_of(int64_t topk) {
  return static_cast<int>(std::max<int64_t>(1, ceil_div(topk, kSplitKeys)));
}

// The workspace between the two kernels, for the queries of one launch; a single split needs none.
struct Partials {
  int64_t queries = 0;  // of a launch: as many as fit kPartialBytes
  TensorView values;    // [queries * heads * num_splits, 512]
  TensorView sums;      // [queries * heads * num_splits, 2]
};

Partials take_partials(Scratch& workspace, int64_t queries, int64_t heads, int num_splits) {
  if (num_splits == 1) return {.queries = queries};
  const int64_t query_bytes = heads * num_splits * (kWidth + 2) * 4;
  const int64_t run = std::min(queries, std::max<int64_t>(1, kPartialBytes / query_bytes));
  const int64_t rows = run * heads * num_splits;
  return {.queries = run,
          .values = workspace.take(DType::kF32, {rows, kWidth}),
          .sums = workspace.take(DType::kF32, {rows, 2})};
}

// In launches of as many queries as the workspace has room for.
template <class Out>
void run_in_batches(const Context& context, Params in, int64_t queries, Out* out) {
  Device& device = *context.device;
  const Scratch::Scope scope(device.workspace());
  const Partials partials = take_partials(device.workspace(), queries, in.heads, in.num_splits);
  if (in.num_splits > 1) {
    in.partial = partials.values.as<float>();
    in.split_stats = reinterpret_cast<float2*>(partials.sums.data);
  }
  const bool few = queries * ceil_div(in.heads, 16) * in.num_splits <= device.info().num_sms;
  const bool wide =
      !few && device.info().max_smem_per_block >= static_cast<int>(sizeof(Shared<64>));
  for (int64_t first = 0; first < queries; first += partials.queries) {
    const int64_t n = std::min(partials.queries, queries - first);
    wide ? launch_kernel<4>(device, in, n, out) : launch_kernel<1>(device, in, n, out);
    if (in.num_splits > 1) {
      launch(device, "sparse_mla combine", combine_kernel<Out>,
             {.grid = n, .block = kCombineThreads, .grid_y = in.heads, .pdl = true}, in, out);
    }
    in.first_query += static_cast<int>(n);
  }
}

const char* reject_list(const KvList& list) {
  if (list.indices.rank == 0 || list.indices.numel() == 0) return nullptr;
  const KvPool& pool = list.pool;
  if (!pool.packed() || pool.layout.v32() || pool.layout.nope != kPackedLayout.nope ||
      pool.layout.rope != kPackedLayout.rope)
    return "wants packed V4 rows of 448 + 64 values";
  if (!rows_on(pool.pages, 16)) return "pages are not on 16 bytes";
  return nullptr;
}

}  // namespace

const char* reject(const Context& context, const SparseMlaArgs& args) {
  if (context.numerics != Numerics::kOfficial) return "bf16 inside";
  if (args.q.dtype != DType::kBF16 || args.q.dim(-1) != kWidth) return "wants bf16 q of 512 values";
  if (args.out.dim(-1) != kWidth) return "wants out of 512 values";
  if (args.q.dim(-2) < 16) return "fewer than 16 heads";
  if (!rows_on(args.q, 16) || !rows_on(args.out, 16)) return "q or out is not on 16 bytes";
  if (context.device->info().max_smem_per_block < static_cast<int>(sizeof(Shared<16>)))
    return "wants 130 KiB of shared memory";
  if (const char* reason = reject_list(args.window)) return reason;
  return reject_list(args.compressed);
}

void run(const Context& context, const SparseMlaArgs& args) {
  Params in{.lists = index_lists(args),
            .q = args.q.as<bf16>(),
            .q_at = query_strides(args.q),
            .out_at = query_strides(args.out),
            .lse_at = lse_strides(args.lse),
            .max_at = lse_strides(args.max_logits),
            .first_query = 0,
            .heads = static_cast<int>(args.q.dim(2)),
            .num_splits = 1,
            .scale = args.scale,
            .normalized = args.normalized,
            .sink = args.sink.empty() ? nullptr : args.sink.as<float>(),
            .lse = args.lse.empty() ? nullptr : args.lse.as<float>(),
            .max_logits = args.max_logits.empty() ? nullptr : args.max_logits.as<float>(),
            .partial = nullptr,
            .split_stats = nullptr};
  in.num_splits = num_splits_of(in.lists.topk());
  with_float_type(args.out.dtype, [&](auto out) {
    using Out = decltype(out);
    run_in_batches(context, in, args.q.dim(0) * args.q.dim(1), args.out.as<Out>());
  });
}

}  // namespace dsv4::sparse_mla_kernel::cuda_mma
