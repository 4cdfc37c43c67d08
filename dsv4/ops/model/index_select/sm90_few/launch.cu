#include <map>
#include <mutex>

#include "dsv4/device/wide_cluster.cuh"
#include "dsv4/ops/model/index_select/index_select.h"
#include "dsv4/ops/model/index_select/sm90_few/gather.cuh"
#include "dsv4/ops/model/index_select/sm90_few/kernel.cuh"

namespace dsv4::index_select_kernel::sm90_few {

namespace {

// Where `parts` is as fast, which loads a key once for several queries: many queries of more
// entries than a cluster gathers, and clusters of one wave above that.
constexpr int64_t kFewVisible = Few::kMost, kFewQueries = 64, kManyQueries = 15;
constexpr int64_t kWideQueries = 7;  // clusters of 16 that run at a time

// A kernel with its clusters, for one type of weights.
template <class C>
struct Launch {
  void (*kernel)(Params);
  int64_t shared;

  LaunchShape shape(int64_t queries) const {
    return {.grid = C::kCtas * queries,
            .block = C::kThreads,
            .shared = shared,
            .cluster = C::kCtas,
            .pdl = true};
  }
  void run(Device& device, const Params& params, int64_t queries) const {
    launch(device, "index_select", kernel, shape(queries), params);
  }
};
template <class C, class W>
Launch<C> gathering(const Params& params) {
  return {gather::select_kernel<C, W>, gather_shared_bytes<C>(params)};
}
template <class C, class W>
Launch<C> exchanging(const Params& params) {
  return {select_kernel<C, W>, shared_bytes<C>(params)};
}

// Clusters of 16 are above the portable size: not every GPU forms them. Allows them, too, on each
// GPU of the process.
template <class W, class C>
bool forms_clusters(const Device& device, const Launch<C>& wide) {
  static std::mutex mutex;
  static std::map<int, bool> forms;  // by ordinal
  const std::scoped_lock lock(mutex);
  const int ordinal = device.info().ordinal;
  if (const auto known = forms.find(ordinal); known != forms.end()) return known->second;
  return forms[ordinal] = allow_wide_clusters(wide.kernel, wide.shape(1)) > 0;
}

template <class W, class Narrow, class Wide>
void run(Device& device, const Params& params, int64_t queries, const Launch<Narrow>& narrow,
         const Launch<Wide>& wide) {
  if (queries <= kWideQueries && forms_clusters<W>(device, wide))
    return wide.run(device, params, queries);
  narrow.run(device, params, queries);
}

}  // namespace

const char* reject(const Context& context, const IndexSelectArgs& args) {
  if (context.device->info().major != 9) return "clusters of CTAs are Hopper's";
  if (context.numerics != Numerics::kOfficial) return "bf16 inside";
  if (args.q.dim(0) > (args.max_visible <= kFewVisible ? kFewQueries : kManyQueries))
    return "too many queries";
  if (args.max_visible > kMaxVisible) return "more than 65536 entries";
  if (args.indices.dim(1) == 0) return "selects nothing";
  return indexer_kernel::reject_operands(args);
}

void run(const Context& context, const IndexSelectArgs& args) {
  Device& device = *context.device;
  const Params params = make_params(args);
  const int64_t queries = args.q.dim(0);
  if (device.is_dry_run() || queries == 0) return;
  with_float_type(args.weights.dtype, [&](auto w) {
    using W = decltype(w);
    if (args.max_visible <= FewOfMany::kMost && queries > kManyQueries) {
      gathering<FewOfMany, W>(params).run(device, params, queries);
    } else if (args.max_visible <= Few::kMost) {
      run<W>(device, params, queries, gathering<Few, W>(params), gathering<FewWide, W>(params));
    } else {
      run<W>(device, params, queries, exchanging<Many, W>(params), exchanging<ManyWide, W>(params));
    }
  });
}

}  // namespace dsv4::index_select_kernel::sm90_few
