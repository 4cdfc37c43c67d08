#include "dsv4/device/alignment.h"
#include "dsv4/device/wide_cluster.cuh"
#include "dsv4/ops/index_select/index_select_impls.h"
#include "dsv4/ops/index_select/sm90_few/kernel.cuh"

namespace dsv4 {

namespace few = index_select_kernel::sm90_few;

namespace {

constexpr int64_t kShortVisible = few::Short::kCtas * few::Short::kPassKeys;
// Where `parts` is as fast, which loads a key once for several queries: 32 queries of 1,024
// entries, and clusters of one wave above that.
constexpr int64_t kShortQueries = 32, kLongQueries = 15;
constexpr int64_t kWideQueries = 7;  // clusters of 16 that run at a time

template <class C>
LaunchShape shape_of(const few::Params& params, int64_t queries) {
  return {.grid = C::kCtas * queries,
          .block = C::kThreads,
          .shared = few::shared_bytes<C>(params),
          .cluster = C::kCtas,
          .pdl = true};
}

template <class C, class W>
void select(Device& device, const few::Params& params, int64_t queries) {
  launch(device, "index_select", few::select_kernel<C, W>, shape_of<C>(params, queries), params);
}

// Clusters of 16 are above the portable size: not every GPU forms them.
template <class W>
bool forms_wide_clusters(const few::Params& params) {
  static const bool forms = allow_wide_clusters(few::select_kernel<few::LongWide, W>,
                                                shape_of<few::LongWide>(params, 1)) > 0;
  return forms;
}

}  // namespace

const char* index_select_sm90_few_reject(const Context& context, const IndexSelectArgs& args) {
  if (context.device->info().major != 9) return "clusters of CTAs are Hopper's";
  if (context.numerics != Numerics::kOfficial) return "bf16 inside";
  const bool is_short = args.max_visible <= kShortVisible;
  if (args.q.dim(0) > (is_short ? kShortQueries : kLongQueries)) return "too many queries";
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
  Device& device = *context.device;
  const few::Params params = few::make_params(args);
  const int64_t queries = args.q.dim(0);
  if (device.is_dry_run() || queries == 0) return;
  with_float_type(args.weights.dtype, [&](auto w) {
    using W = decltype(w);
    if (args.max_visible <= kShortVisible) {
      select<few::Short, W>(device, params, queries);
    } else if (queries <= kWideQueries && forms_wide_clusters<W>(params)) {
      select<few::LongWide, W>(device, params, queries);
    } else {
      select<few::Long, W>(device, params, queries);
    }
  });
}

}  // namespace dsv4
