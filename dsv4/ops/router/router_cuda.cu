// A warp a token. Scores and keys lie in shared memory; the best of what is left is found k times.

#include "dsv4/base/bits.h"
#include "dsv4/device/launch.cuh"
#include "dsv4/device/math.cuh"
#include "dsv4/ops/router/router_cuda.h"

namespace dsv4 {
namespace {

constexpr int kWarps = 4;  // of a block

// As on the CPU: below -20, ln(1 + e^v) is e^v to f32 precision.
__device__ float score(float logit) {
  if (logit < -20.f) return expf(0.5f * logit);
  return sqrtf(logit > 20.f ? logit : log1pf(expf(logit)));
}

// Integers in the order of the floats: NaN below all numbers, and -0 equal to 0.
constexpr uint32_t kTaken = 0, kNaN = 1;
__device__ uint32_t ordered(float key) {
  if (isnan(key)) return kNaN;
  const uint32_t bits = __float_as_uint(key + 0.f);
  return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}

// The largest key in the upper half, the lowest id in the lower: one maximum finds both.
__device__ uint64_t candidate(uint32_t key, int expert) {
  return (static_cast<uint64_t>(key) << 32) | ~static_cast<uint32_t>(expert);
}
__device__ int expert_of(uint64_t candidate) {
  return static_cast<int>(~static_cast<uint32_t>(candidate));
}

__device__ uint64_t best_of_lane(const uint32_t* keys, int experts, int lane) {
  uint64_t best = 0;
  for (int e = lane; e < experts; e += kWarp) {
    if (keys[e] != kTaken) best = max(best, candidate(keys[e], e));
  }
  return best;
}

// Calls found(j, expert) in every lane for the k best, best first.
template <class Found>
__device__ void choose_top(uint32_t* keys, int experts, int k, const Found& found) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  uint64_t own = best_of_lane(keys, experts, lane);
  for (int j = 0; j < k; ++j) {
    uint64_t best = own;
    for (int step = kWarp / 2; step > 0; step /= 2)
      best = max(best, __shfl_xor_sync(~0u, best, step));
    const int expert = expert_of(best);
    found(j, expert);
    if (expert % kWarp != lane) continue;  // only this lane looks at it again
    keys[expert] = kTaken;
    own = best_of_lane(keys, experts, lane);
  }
}

struct Routing {
  const float* logits;  // [t, e]
  int64_t logits_stride;
  const float* bias;  // [e] or null
  const void* table;  // [v, k] I64|I32 or null
  int64_t table_stride;
  const int32_t* ids;  // [t]
  float route_scale;
  bool normalise;
  int32_t* chosen;  // [t, k]
  float* weights;   // [t, k]
  int64_t chosen_stride, weights_stride;
  int64_t t;
  int experts, k;
};

// Entry: of the table.
template <class Entry>
__global__ void router_kernel(Routing r) {
  extern __shared__ float memory[];  // [kWarps, 2, experts]
  const int warp = static_cast<int>(threadIdx.x) / kWarp,
            lane = static_cast<int>(threadIdx.x) % kWarp;
  const int64_t token = static_cast<int64_t>(blockIdx.x) * kWarps + warp;
  if (token >= r.t) return;
  float* scores = memory + warp * 2 * r.experts;
  auto* keys = reinterpret_cast<uint32_t*>(scores + r.experts);
  for (int e = lane; e < r.experts; e += kWarp) {
    scores[e] = score(r.logits[token * r.logits_stride + e]);
    keys[e] = ordered(r.bias == nullptr ? scores[e] : scores[e] + r.bias[e]);
  }
  __syncwarp();
  int32_t* chosen = r.chosen + token * r.chosen_stride;
  float* weights = r.weights + token * r.weights_stride;
  float sum = 0;  // in the order of choice, the same in every lane
  const auto take = [&](int j, int expert) {
    sum += scores[expert];
    if (lane == 0) chosen[j] = expert, weights[j] = scores[expert];
  };
  if (r.table == nullptr) {
    choose_top(keys, r.experts, r.k, take);
  } else {
    const auto* row = static_cast<const Entry*>(r.table) + r.ids[token] * r.table_stride;
    for (int j = 0; j < r.k; ++j) take(j, static_cast<int>(row[j]));
  }
  if (lane != 0) return;
  for (int j = 0; j < r.k; ++j)
    weights[j] = (r.normalise ? weights[j] / sum : weights[j]) * r.route_scale;
}

}  // namespace

void router_cuda(const Context& context, const RouterArgs& args) {
  const bool hash = !args.tid2eid.empty();
  const Routing routing{.logits = args.logits.as<float>(),
                        .logits_stride = args.logits.row_stride(),
                        .bias = args.bias.empty() ? nullptr : args.bias.as<float>(),
                        .table = hash ? args.tid2eid.data : nullptr,
                        .table_stride = hash ? args.tid2eid.row_stride() : 0,
                        .ids = hash ? args.ids.as<int32_t>() : nullptr,
                        .route_scale = args.route_scale,
                        .normalise = args.normalise,
                        .chosen = args.experts.as<int32_t>(),
                        .weights = args.weights.as<float>(),
                        .chosen_stride = args.experts.row_stride(),
                        .weights_stride = args.weights.row_stride(),
                        .t = args.logits.dim(0),
                        .experts = static_cast<int>(args.logits.dim(1)),
                        .k = static_cast<int>(args.experts.dim(1))};
  const bool wide = hash && args.tid2eid.dtype == DType::kI64;
  launch(*context.device, "router", wide ? router_kernel<int64_t> : router_kernel<int32_t>,
         {.grid = ceil_div(routing.t, kWarps),
          .block = kWarps * kWarp,
          .shared = int64_t{kWarps} * 2 * routing.experts * static_cast<int64_t>(sizeof(float))},
         routing);
}

}  // namespace dsv4
