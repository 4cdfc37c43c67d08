// The routing of one or two tokens by a CTA, into shared memory: every CTA computes the same.
//
// Learned routing: each math thread scores an expert, since code that runs once costs more than
// arithmetic; then a warp for each token selects. Hash routing: the warps read their rows of the
// table. The order of keys, ties and weights are those of ops/parts/router/routing.cuh.

#pragma once

#include <climits>

#include "dsv4/device/ptx/named_barrier.cuh"
#include "dsv4/ops/model/moe/sm90_fused/config.cuh"

namespace dsv4::moe_kernel::sm90_fused {

// One math thread: its expert of the first round; there is a second one with more than 512 keys.
class Scorer {
 public:
  // Reads the bias, a weight.
  __device__ Scorer(const router_kernel::Routing& r, int tokens)
      : r_(r), tokens_(tokens), keys_(tokens * r.experts) {
    if (exists()) bias_ = bias();
  }
  // When the logits are complete.
  __device__ void load() {
    if (exists()) logit_ = logit();
  }
  __device__ void store(Routes& routes) {
    if (r_.table != nullptr) return;
#pragma unroll 1
    while (index_ < keys_) {
      routes.keys[token()][expert()] = router_kernel::ordered(router_kernel::score(logit_) + bias_);
      index_ += kMathThreads;
      if (exists()) bias_ = bias(), logit_ = logit();
    }
    ptx::barrier_arrive(kKeysBarrier, kMathThreads + tokens_ * kWarp);
  }

 private:
  __device__ bool exists() const {
    return r_.table == nullptr && index_ < keys_;
  }
  __device__ int token() const {
    return index_ >= r_.experts ? 1 : 0;
  }
  __device__ int expert() const {
    return index_ - token() * r_.experts;
  }
  __device__ float bias() const {
    return r_.bias != nullptr ? r_.bias[expert()] : 0.f;
  }
  __device__ float logit() const {
    return r_.logits[token() * r_.logits_stride + expert()];
  }

  const router_kernel::Routing& r_;
  const int tokens_, keys_;
  int index_ = static_cast<int>(threadIdx.x);
  float bias_ = 0, logit_ = 0;
};

// The first of the largest of kCount keys.
struct Best {
  uint32_t key;
  int at;
};
template <int kPer, int kFirst = 0, int kCount = kPer>
__device__ Best best_of(const uint32_t (&keys)[kPer]) {
  if constexpr (kCount == 1) {
    return {keys[kFirst], kFirst};
  } else {
    const Best low = best_of<kPer, kFirst, kCount / 2>(keys);
    const Best high = best_of<kPer, kFirst + kCount / 2, kCount - kCount / 2>(keys);
    return high.key > low.key ? high : low;
  }
}

// Lane j < k gets the j-th choice: the largest key, the lowest expert of equal ones. A lane has
// kPer neighboring experts, so the lowest lane has the lowest of them. Each round waits for the one
// before, so what it waits for is short: a tree for the largest key of a lane, no shuffle.
template <int kPer>
__device__ int select(const uint32_t* of_token, int k) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  uint32_t keys[kPer];
#pragma unroll
  for (int i = 0; i < kPer; i += 4) {
    const uint4 four = *reinterpret_cast<const uint4*>(of_token + lane * kPer + i);
    keys[i] = four.x, keys[i + 1] = four.y, keys[i + 2] = four.z, keys[i + 3] = four.w;
  }
  int chosen = 0;
#pragma unroll 1
  for (int j = 0; j < k; ++j) {
    const Best best = best_of(keys);
    const bool largest = best.key == __reduce_max_sync(~0u, best.key);
    const unsigned lanes = __ballot_sync(~0u, largest);
    const int expert = __shfl_sync(~0u, lane * kPer + best.at, __ffs(static_cast<int>(lanes)) - 1);
    if (lane == j) chosen = expert;
    const bool taken = largest && (lanes & ((1u << lane) - 1)) == 0;
#pragma unroll
    for (int i = 0; i < kPer; ++i)
      if (taken && i == best.at) keys[i] = router_kernel::kTaken;
  }
  return chosen;
}

// The choices of a token by one warp; lane j < k has the j-th.
__device__ inline int choose(const router_kernel::Routing& r, int tokens, int token,
                             const Routes& routes) {
  if (r.table == nullptr) {
    ptx::barrier_sync(kKeysBarrier, kMathThreads + tokens * kWarp);
    return r.experts <= 8 * kWarp ? select<8>(routes.keys[token], r.k)
                                  : select<kMaxExperts / kWarp>(routes.keys[token], r.k);
  }
  const int slot = min(static_cast<int>(threadIdx.x) % kWarp, r.k - 1);
  return r.table_is_i64 ? router_kernel::hashed<int64_t>(r, token, slot)
                        : router_kernel::hashed<int32_t>(r, token, slot);
}

// One warp. expert: lane `slots * token + slot` has a choice.
__device__ inline void list_entries(int expert, int tokens, int slots, Routes& routes) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp, pairs = tokens * slots;
  const bool exists = lane < pairs;
  if (!exists) expert = INT_MAX;
  const int token = exists && lane >= slots ? 1 : 0;
  const unsigned peers = __match_any_sync(~0u, expert), first = (1u << slots) - 1;
  const unsigned own = token == 0 ? first : ~first;
  // How many choices of this expert the token made before, and how many the other token made.
  const int nth = __popc(peers & own & ((1u << lane) - 1)), others = __popc(peers & ~own);
  const unsigned leaders = __ballot_sync(~0u, exists && (token == 0 || nth >= others));
  int entry = nth;
#pragma unroll 4
  for (int j = 0; j < pairs; ++j)
    entry += __shfl_sync(~0u, expert, j) < expert ? static_cast<int>(leaders >> j & 1u) : 0;
  if (lane == 0) routes.count = __popc(leaders);
  if (!exists) return;
  routes.expert[lane] = expert, routes.entry_of[lane] = entry;
  if ((leaders >> lane & 1u) == 0) return;
  routes.entries[entry].expert = expert;
  routes.entries[entry].first_pair = entry * tokens, routes.entries[entry].pairs = tokens;
  routes.tokens_of[entry] = token == 1 ? 2u : nth < others ? 3u : 1u;
}

// Warps kListWarp and kHelperWarp; afterwards the list warp has all entries.
__device__ inline void route(const router_kernel::Routing& r, int tokens, bool lists,
                             Routes& routes) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  if (!lists && tokens == 1) return;
  int expert = choose(r, tokens, lists ? 0 : 1, routes);
  if (!lists) {
    if (lane < r.k) routes.expert[r.k + lane] = expert;
    return ptx::barrier_arrive(kChoicesBarrier, 2 * kWarp);
  }
  if (tokens > 1) {
    ptx::barrier_sync(kChoicesBarrier, 2 * kWarp);
    if (lane >= r.k && lane < 2 * r.k) expert = routes.expert[lane];
    __syncwarp();
  }
  list_entries(expert, tokens, r.k, routes);
  __syncwarp();
  ptx::barrier_arrive(kListedBarrier, kListedThreads);
}

// The weights of the choices, by the epilogue warps, one for each token; after kListedBarrier.
__device__ inline void store_weights(const router_kernel::Routing& r, int tokens, Routes& routes) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int token = static_cast<int>(threadIdx.x) / kWarp - e4m3::kMathWarps;
  if (token < tokens) {
    const int pair = token * r.k + min(lane, r.k - 1);
    const float weight = router_kernel::weight_of(
        r, router_kernel::score(r.logits[token * r.logits_stride + routes.expert[pair]]));
    if (lane < r.k) routes.weight[routes.entry_of[pair] * tokens + token] = weight;
  }
  ptx::barrier_sync(kWeightsBarrier, e4m3::kEpilogueWarps * kWarp);
}

}  // namespace dsv4::moe_kernel::sm90_fused
