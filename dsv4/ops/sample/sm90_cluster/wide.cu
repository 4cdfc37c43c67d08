// Clusters of 16 CTAs: half the tokens for a CTA, for calls of few rows.

#include "dsv4/device/wide_cluster.cuh"
#include "dsv4/ops/sample/launch.cuh"
#include "dsv4/ops/sample/sm90_cluster/wide.cuh"

namespace dsv4::sampling {
namespace {

constexpr int kCtas = 16;

bool forms_clusters(int64_t v) {
  static const bool forms =
      allow_wide_clusters(
          sample_kernel<kCtas>,
          {.grid = kCtas, .block = kThreads, .shared = shared_bytes<kCtas>(v), .cluster = kCtas}) >
      0;
  return forms;
}

}  // namespace

bool sample_wide(const Context& context, const SampleArgs& args) {
  constexpr int64_t kMaxRows = 7;  // clusters that run at a time
  const int64_t rows = args.logits.dim(0);
  if (rows == 0 || rows > kMaxRows || context.device->is_dry_run()) return false;
  if (!forms_clusters(args.logits.dim(1))) return false;
  launch_sample<kCtas>(context, args);
  return true;
}

}  // namespace dsv4::sampling
