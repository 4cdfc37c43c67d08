// The routing of one token by one warp, everything in registers: lane l scores experts l, l + 32,
// .. and keeps its largest key; k times, two reductions find the largest of the warp.

#pragma once

#include "dsv4/device/math.cuh"
#include "dsv4/ops/parts/router/router.h"

namespace dsv4::router_kernel {

inline constexpr int kMaxPerLane = 32;

// As on the CPU: below -20, ln(1 + e^v) is e^v to f32 precision.
__device__ inline float score(float logit) {
  if (logit < -20.f) return expf(0.5f * logit);
  return sqrtf(logit > 20.f ? logit : log1pf(expf(logit)));
}

// Integers in the order of the floats: NaN is below all numbers, -0 equals 0, and no float is
// kTaken.
inline constexpr uint32_t kTaken = 0, kNaN = 1;
__device__ inline uint32_t ordered(float key) {
  if (key != key) return kNaN;
  const uint32_t bits = __float_as_uint(key + 0.f);
  return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}

struct Routing {
  const float* logits;  // [t, e]
  int64_t logits_stride;
  const float* bias;  // [e] or null
  const void* table;  // [v, k] I64|I32, or null: learned routing
  int64_t table_stride;
  bool table_is_i64;
  const int32_t* ids;  // [t]
  float route_scale;
  bool normalize;
  int32_t* chosen;  // [t, k]
  float* weights;   // [t, k]
  int64_t chosen_stride, weights_stride;
  int64_t t;
  int experts, k;
};

inline Routing make_routing(const RouterArgs& args) {
  const bool hash = !args.tid2eid.empty();
  return {.logits = args.logits.as<float>(),
          .logits_stride = args.logits.row_stride(),
          .bias = args.bias.empty() ? nullptr : args.bias.as<float>(),
          .table = hash ? args.tid2eid.data : nullptr,
          .table_stride = hash ? args.tid2eid.row_stride() : 0,
          .table_is_i64 = hash && args.tid2eid.dtype == DType::kI64,
          .ids = hash ? args.ids.as<int32_t>() : nullptr,
          .route_scale = args.route_scale,
          .normalize = args.normalize,
          .chosen = args.experts.as<int32_t>(),
          .weights = args.weights.as<float>(),
          .chosen_stride = args.experts.row_stride(),
          .weights_stride = args.weights.row_stride(),
          .t = args.logits.dim(0),
          .experts = static_cast<int>(args.logits.dim(1)),
          .k = static_cast<int>(args.experts.dim(1))};
}

// Lane j < k has the score of the j-th selected expert. Returns the weight of it.
__device__ inline float weight_of(const Routing& r, float own) {
  float sum = 0;
  for (int j = 0; j < r.k; ++j) sum += __shfl_sync(~0u, own, j);
  return (r.normalize ? own / sum : own) * r.route_scale;
}

// Lane j has the j-th selected expert and its score.
__device__ inline void write_choice(const Routing& r, int64_t token, int expert, float own) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const float weight = weight_of(r, own);
  if (lane >= r.k) return;
  r.chosen[token * r.chosen_stride + lane] = expert;
  r.weights[token * r.weights_stride + lane] = weight;
}

// The experts of one lane that are not yet selected.
template <int kPer>
struct Lane {
  float scores[kPer];
  uint32_t keys[kPer];

  __device__ void load(const Routing& r, const float* logits, int lane) {
    float bias[kPer];
#pragma unroll
    for (int i = 0; i < kPer; ++i) {  // all loads are issued before the first result is used
      const int expert = i * kWarp + lane;
      const bool inside = expert < r.experts;
      scores[i] = inside ? logits[expert] : 0.f;
      bias[i] = inside && r.bias != nullptr ? r.bias[expert] : 0.f;
    }
#pragma unroll
    for (int i = 0; i < kPer; ++i) {
      scores[i] = score(scores[i]);
      keys[i] = i * kWarp + lane < r.experts ? ordered(scores[i] + bias[i]) : kTaken;
    }
  }
  // The first of the largest keys.
  __device__ int best() const {
    int at = 0;
    uint32_t key = keys[0];
#pragma unroll
    for (int i = 1; i < kPer; ++i) {
      if (keys[i] > key) key = keys[i], at = i;
    }
    return at;
  }
  __device__ uint32_t key(int at) const {
    return pick(keys, at);
  }
  __device__ float score_of(int at) const {
    return pick(scores, at);
  }
  __device__ void take(int at) {
#pragma unroll
    for (int i = 0; i < kPer; ++i) {
      if (i == at) keys[i] = kTaken;
    }
  }

 private:
  template <class T>
  static __device__ T pick(const T (&values)[kPer], int at) {  // registers cannot be indexed
    T value = values[0];
#pragma unroll
    for (int i = 1; i < kPer; ++i) {
      if (i == at) value = values[i];
    }
    return value;
  }
};

// One warp.
template <int kPer>
__device__ void route_learned(const Routing& r, int64_t token) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  Lane<kPer> own;
  own.load(r, r.logits + token * r.logits_stride, lane);
  int chosen = 0;
  float chosen_score = 0;
  for (int j = 0; j < r.k; ++j) {
    const int at = own.best();
    const uint32_t key = own.key(at), largest = __reduce_max_sync(~0u, key);
    const auto offer = static_cast<uint32_t>(at * kWarp + lane);
    const uint32_t winner = __reduce_min_sync(~0u, key == largest ? offer : ~0u);
    const float won = __shfl_sync(~0u, own.score_of(at), static_cast<int>(winner % kWarp));
    if (lane == j) chosen = static_cast<int>(winner), chosen_score = won;
    if (offer == winner) own.take(at);
  }
  write_choice(r, token, chosen, chosen_score);
}

// The expert in a slot of a token. Entry: the element type of the table.
template <class Entry>
__device__ int hashed(const Routing& r, int64_t token, int slot) {
  return static_cast<int>(static_cast<const Entry*>(r.table)[r.ids[token] * r.table_stride + slot]);
}

// One warp.
template <class Entry>
__device__ void route_hash(const Routing& r, int64_t token) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  int chosen = 0;
  float own = 0;
  if (lane < r.k) {
    chosen = hashed<Entry>(r, token, lane);
    own = score(r.logits[token * r.logits_stride + chosen]);
  }
  write_choice(r, token, chosen, own);
}

}  // namespace dsv4::router_kernel
