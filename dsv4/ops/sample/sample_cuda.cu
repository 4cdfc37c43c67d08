// Two kernels. The first reduces slices of each row: the largest logit, its lowest id, and sums of
// exponentials in f64. The second, one CTA per row, finishes greedy rows at once; for the others it
// traverses the candidates in order, in windows of the 2048 next ones: radix selection finds them,
// a sort in shared memory orders them, a prefix sum gives their masses. Nearly all draws end in the
// first window.

#include <cub/block/block_radix_sort.cuh>
#include <cub/block/block_scan.cuh>

#include "dsv4/base/rng.h"
#include "dsv4/device/launch.cuh"
#include "dsv4/device/select.cuh"
#include "dsv4/ops/sample/sample_impls.h"

namespace dsv4 {
namespace {

constexpr int kSlices = kWarp;  // per row in the first kernel
constexpr int kSliceThreads = 256;

// The reduction of one slice of a row, or of the whole row.
struct Stats {
  float largest;  // -inf: every token is banned; +inf: there is a NaN or +inf
  int32_t id;     // the lowest with the largest logit
  double sum;     // of exp(logit - largest)
  double mass;    // of exp((logit - largest) / temperature); 0 for temperature 0
};

// Reduces f(a, b) over the CTA in a fixed order; f is commutative. Every thread gets the same
// result.
template <int kThreads, class T, class F>
__device__ T block_reduce(T x, T* shared, const F& f) {
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  for (int step = kWarp / 2; step > 0; step /= 2) x = f(x, __shfl_xor_sync(~0u, x, step));
  __syncthreads();  // the previous use of `shared` has ended
  if (lane == 0) shared[warp] = x;
  __syncthreads();
  T result = shared[0];
  for (int w = 1; w < kThreads / kWarp; ++w) result = f(result, shared[w]);
  return result;
}

// Orders by logit, then by lower id; 0: nothing.
__device__ unsigned long long ranked(float logit, int id) {
  const uint32_t key = order_key(logit);
  return key == 0 ? 0 : (static_cast<unsigned long long>(key) << 32) | ~static_cast<uint32_t>(id);
}

// CTA (r, s): slice s of row r. stats: [b, kSlices]
__global__ void __launch_bounds__(kSliceThreads)
    slice_kernel(const float* logits, int64_t stride, int v, const SamplingParams* params,
                 Stats* stats) {
  __shared__ unsigned long long best_of_warps[kSliceThreads / kWarp];
  __shared__ double sums[kSliceThreads / kWarp];
  logits += blockIdx.x * stride;
  const int length = static_cast<int>(ceil_div(v, kSlices));
  const int begin = min(static_cast<int>(blockIdx.y) * length, v), end = min(begin + length, v);
  const auto add = [](double a, double b) { return a + b; };

  unsigned long long best = 0;
  bool bad = false;
  for (int i = begin + threadIdx.x; i < end; i += kSliceThreads) {
    const float logit = logits[i];
    bad |= !(logit < INFINITY);
    best = max(best, ranked(logit, i));
  }
  bad = __syncthreads_or(bad) != 0;
  best = block_reduce<kSliceThreads>(best, best_of_warps, [](auto a, auto b) { return max(a, b); });

  Stats mine{.largest = bad ? INFINITY : -INFINITY, .id = -1, .sum = 0, .mass = 0};
  if (!bad && best != 0) {
    mine.largest = from_order_key(static_cast<uint32_t>(best >> 32));
    mine.id = static_cast<int32_t>(~static_cast<uint32_t>(best));
    const double temperature = params[blockIdx.x].temperature;
    for (int i = begin + threadIdx.x; i < end; i += kSliceThreads) {
      const double below = static_cast<double>(logits[i]) - static_cast<double>(mine.largest);
      mine.sum += exp(below);
      if (temperature > 0) mine.mass += exp(below / temperature);
    }
    mine.sum = block_reduce<kSliceThreads>(mine.sum, sums, add);
    mine.mass = block_reduce<kSliceThreads>(mine.mass, sums, add);
  }
  if (threadIdx.x == 0) stats[int64_t{blockIdx.x} * kSlices + blockIdx.y] = mine;
}

// The reduction of the row, the same in every lane; called by whole warps. slices: [kSlices], one
// per lane.
__device__ Stats combine(const Stats* slices, double temperature) {
  const Stats mine = slices[threadIdx.x % kWarp];
  Stats all = mine;
  for (int step = kWarp / 2; step > 0; step /= 2) {
    const float largest = __shfl_xor_sync(~0u, all.largest, step);
    const int32_t id = __shfl_xor_sync(~0u, all.id, step);
    const bool better = largest > all.largest || (largest == all.largest && id < all.id);
    if (better) all.largest = largest, all.id = id;
  }
  const bool counts = mine.id >= 0 && isfinite(all.largest);
  const double below = static_cast<double>(mine.largest) - static_cast<double>(all.largest);
  all.sum = counts ? mine.sum * exp(below) : 0;
  all.mass = counts && temperature > 0 ? mine.mass * exp(below / temperature) : 0;
  for (int step = kWarp / 2; step > 0; step /= 2) {
    all.sum += __shfl_xor_sync(~0u, all.sum, step);
    all.mass += __shfl_xor_sync(~0u, all.mass, step);
  }
  return all;
}

constexpr int kPerThread = 2, kWindow = kPerThread * kSelectThreads;

using Sort = cub::BlockRadixSort<uint32_t, kSelectThreads, kPerThread, int32_t>;
using Scan = cub::BlockScan<double, kSelectThreads>;

struct Shared {
  uint32_t keys[kWindow];
  int32_t ids[kWindow];
  double masses[kWindow];  // of all candidates up to this one
  union {
    SelectShared select;
    Sort::TempStorage sort;
    Scan::TempStorage scan;
  };
  int stop;
};

// Keys of the candidates after a given one; 0 for the others and for banned tokens.
struct Remaining {
  const float* logits;
  uint32_t above = ~0u;  // key and id of the last candidate of the previous window
  int above_id = -1;

  __device__ float load(int i) const { return __ldg(logits + i); }
  __device__ uint32_t key(float logit, int i) const {
    const uint32_t key = order_key(logit);
    return key > above || (key == above && i <= above_id) ? 0 : key;
  }
};

// The candidates in order: larger logit first, ties to the lowest id, without banned tokens. All
// threads of the CTA call the same functions.
class Descending {
 public:
  __device__ Descending(const float* logits, int v, float largest, double temperature,
                        Shared& shared)
      : remaining_{.logits = logits},
        v_(v),
        largest_(largest),
        temperature_(temperature),
        shared_(shared) {
    load(0, 0.0);
  }

  struct Prefix {
    int64_t count;
    double mass;
    int32_t last;  // id
  };

  // Like load(), not inlined: with more than one copy, 64 registers per thread are too few.
  //
  // The least number of candidates, at most `limit` > 0, whose weights sum past `target`, or reach
  // it if `reached_is_enough`; all of them if none do.
  __device__ __noinline__ Prefix prefix(int64_t limit, double target, bool reached_is_enough) {
    if (first_ != 0) {
      remaining_ = {.logits = remaining_.logits};
      load(0, 0.0);
    }
    for (;; load(first_ + count_, shared_.masses[count_ - 1])) {
      const int inside = static_cast<int>(min(limit - first_, static_cast<int64_t>(count_)));
      const int stop = first_past(inside, target, reached_is_enough);
      const int n = min(stop + 1, inside);
      if (stop == inside && first_ + inside < limit && more_) continue;
      return {first_ + n, shared_.masses[n - 1], shared_.ids[n - 1]};
    }
  }

 private:
  // Loads the window after the first `first` candidates, whose mass is `before`; at least one
  // candidate remains.
  __device__ __noinline__ void load(int64_t first, double before) {
    __syncthreads();  // all threads have read the previous window
    if (first != 0) {
      remaining_.above = shared_.keys[count_ - 1];
      remaining_.above_id = shared_.ids[count_ - 1];
    }
    const Remaining source = remaining_;
    const Selection chosen = select_largest(source, v_, kWindow, shared_.select);
    const int total = shared_.select.total;
    __syncthreads();
    Shared& shared = shared_;
    count_ = visit_selected(source, v_, chosen, shared.select, [&](int rank, int i, uint32_t key) {
      shared.keys[rank] = key;
      shared.ids[rank] = i;
    });
    first_ = first;
    more_ = total > count_;
    sort_window(before);
  }

  __device__ void sort_window(double before) {
    uint32_t keys[kPerThread];
    int32_t ids[kPerThread];
    double masses[kPerThread];
    const int mine = kPerThread * static_cast<int>(threadIdx.x);
    for (int j = 0; j < kPerThread; ++j) {
      keys[j] = mine + j < count_ ? shared_.keys[mine + j] : 0;
      ids[j] = mine + j < count_ ? shared_.ids[mine + j] : -1;
    }
    Sort(shared_.sort).SortDescending(keys, ids);  // stable: equal keys stay in ascending id
    __syncthreads();
    for (int j = 0; j < kPerThread; ++j) {
      const double below =
          static_cast<double>(from_order_key(keys[j])) - static_cast<double>(largest_);
      masses[j] = mine + j < count_ ? exp(below / temperature_) : 0;
    }
    Scan(shared_.scan).InclusiveSum(masses, masses);
    for (int j = 0; j < kPerThread; ++j) {
      shared_.keys[mine + j] = keys[j];
      shared_.ids[mine + j] = ids[j];
      shared_.masses[mine + j] = before + masses[j];
    }
    __syncthreads();
  }

  __device__ int first_past(int inside, double target, bool reached_is_enough) {
    if (threadIdx.x == 0) shared_.stop = inside;
    __syncthreads();
    for (int i = threadIdx.x; i < inside; i += kSelectThreads) {
      const double mass = shared_.masses[i];
      if (mass > target || (reached_is_enough && mass == target)) atomicMin(&shared_.stop, i);
    }
    __syncthreads();
    const int stop = shared_.stop;
    __syncthreads();
    return stop;
  }

  Remaining remaining_;
  const int v_;
  const float largest_;
  const double temperature_;
  Shared& shared_;
  int64_t first_ = 0;  // candidates before the window
  int count_ = 0;      // in the window
  bool more_ = false;  // whether candidates remain after the window
};

__device__ int32_t draw(const float* logits, int v, const Stats& stats,
                        const SamplingParams& params, uint64_t step, Shared& shared) {
  Descending candidates(logits, v, stats.largest, params.temperature, shared);
  const double top_p = params.top_p;
  int64_t kept = v;
  double mass = stats.mass;
  if (params.top_k > 0 && params.top_k < v) {
    const auto cut = candidates.prefix(params.top_k, INFINITY, false);
    kept = cut.count, mass = cut.mass;
  }
  if (top_p < 1) {
    const auto cut = candidates.prefix(kept, top_p * mass, true);
    kept = cut.count, mass = cut.mass;
  }
  const double target = random_uniform(params.seed, step) * mass;
  return candidates.prefix(kept, target, false).last;
}

// CTA r: row r. stats: [b, kSlices]
__global__ void __launch_bounds__(kSelectThreads)
    choose_kernel(const float* logits, int64_t stride, int v, const SamplingParams* params,
                  const uint64_t* steps, const Stats* stats, int32_t* ids, float* logprobs) {
  extern __shared__ __align__(16) unsigned char memory[];
  Shared& shared = *reinterpret_cast<Shared*>(memory);
  const int64_t row = blockIdx.x;
  logits += row * stride;
  const SamplingParams how = params[row];
  const Stats all = combine(stats + row * kSlices, how.temperature);
  int32_t id = isfinite(all.largest) ? all.id : -1;
  if (id >= 0 && how.temperature > 0) id = draw(logits, v, all, how, steps[row], shared);
  if (threadIdx.x != 0) return;
  ids[row] = id;
  logprobs[row] = id < 0 ? NAN
                         : static_cast<float>(static_cast<double>(logits[id]) -
                                              static_cast<double>(all.largest) - log(all.sum));
}

}  // namespace

void sample_cuda(const Context& context, const SampleArgs& args) {
  Device& device = *context.device;
  const int64_t rows = args.logits.dim(0), v = args.logits.dim(1);
  const Scratch::Scope scope(device.workspace());
  const TensorView stats =
      device.workspace().take(DType::kU8, {rows, kSlices * static_cast<int64_t>(sizeof(Stats))});
  auto* slices = reinterpret_cast<Stats*>(stats.data);
  launch(device, "sample slices", slice_kernel,
         {.grid = rows, .block = kSliceThreads, .grid_y = kSlices}, args.logits.as<float>(),
         args.logits.row_stride(), v, args.params.data(), slices);
  launch(device, "sample", choose_kernel,
         {.grid = rows, .block = kSelectThreads, .shared = static_cast<int64_t>(sizeof(Shared))},
         args.logits.as<float>(), args.logits.row_stride(), v, args.params.data(),
         args.steps.data(), slices, args.ids.as<int32_t>(), args.logprobs.as<float>());
}

}  // namespace dsv4
