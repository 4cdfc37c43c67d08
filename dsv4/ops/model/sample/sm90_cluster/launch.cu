#include "dsv4/device/sm90/limits.h"
#include "dsv4/ops/model/sample/launch.cuh"
#include "dsv4/ops/model/sample/sample.h"

namespace dsv4::sample_kernel::sm90_cluster {
namespace {

constexpr int kCtas = 8;  // of a row: the largest cluster that every device forms
constexpr int64_t kV4Vocabulary = 129'280;
static_assert(shared_bytes<kCtas>(kV4Vocabulary) <= sm90::kMaxSmem);

}  // namespace

const char* reject(const Context& context, const SampleArgs& args) {
  if (context.device->info().major != 9) return "clusters of CTAs are Hopper's";
  if (shared_bytes<kCtas>(args.logits.dim(1)) > sm90::kMaxSmem)
    return "an eighth of a row does not fit into shared memory";
  if (slice_of<kCtas>(args.logits.dim(1)) > kMaxSlice) return "more than 131,072 tokens";
  return nullptr;
}

void run(const Context& context, const SampleArgs& args) {
  launch_sample<kCtas>(context, args);
}

}  // namespace dsv4::sample_kernel::sm90_cluster
