// f32 arithmetic for any shape. A CTA computes one query and 64 keys, decoded to f32 in shared
// memory, with heads in chunks of 32. Thread (key, g) computes heads 8g .. 8g+7 of each chunk; the
// four sums of a key are added in ascending g.

#include "dsv4/device/launch.cuh"
#include "dsv4/device/math.cuh"
#include "dsv4/device/ptx/griddep.cuh"
#include "dsv4/formats/e2m1.h"
#include "dsv4/formats/ue8m0.h"
#include "dsv4/ops/parts/indexer/indexer.h"

namespace dsv4::indexer_kernel::cuda {
namespace {

constexpr int kKeys = 64, kGroups = 4, kThreads = kKeys * kGroups;
constexpr int kHeadsOfThread = 8, kChunk = kGroups * kHeadsOfThread;

struct Inputs {
  int64_t q_stride, q_head_stride, weight_stride, pages_stride, page_bytes, scores_stride;
  const uint8_t* key_pages;  // floats if plain
  bool packed;
  IndexLayoutFp4 layout;
  int page_entries, heads;
  float weight_scale;
  const int32_t *pages, *sequence, *visible;
  float* scores;
  int n;
};

// Loads keys first .. first + count - 1 of a sequence into keys [d4][kKeys], with zeros in the
// other columns and in dims past the width.
__device__ void load_keys(const Inputs& in, const int32_t* pages, int first, int count, int d4,
                          float* keys) {
  const int width = in.layout.width;
  for (int i = threadIdx.x; i < kKeys * d4; i += kThreads) {
    const int key = i % kKeys, c = i / kKeys, s = first + key;
    float value = 0.f;
    if (key < count && c < width) {
      const int entry = s % in.page_entries;
      const uint8_t* page = in.key_pages + pages[s / in.page_entries] * in.page_bytes;
      if (in.packed) {
        const uint8_t pair = page[in.layout.code_offset(entry) + c / 2];
        const uint8_t scale =
            page[in.layout.scale_offset(in.page_entries, entry) + c / IndexLayoutFp4::kGroup];
        value = e2m1_to_f32(e2m1_code(pair, c)) * ue8m0_to_f32(scale);
      } else {
        value = reinterpret_cast<const float*>(page)[entry * width + c];
      }
    }
    keys[i] = value;
  }
}

// Loads heads first .. first + kChunk - 1 of one query into q [kChunk][d4], with zeros past the
// last.
template <class Q>
__device__ void load_heads(const Inputs& in, const Q* from, int first, int d4, float* q) {
  for (int i = threadIdx.x; i < kChunk * d4; i += kThreads) {
    const int head = first + i / d4, c = i % d4;
    const bool inside = head < in.heads && c < in.layout.width;
    q[i] = inside ? to_float(from[head * in.q_head_stride + c]) : 0.f;
  }
}

template <bool kRound>
__device__ float step(float x) {
  return kRound ? to_float(from_float<bf16>(x)) : x;
}

// CTA (i, j): query i, keys from j * kKeys on. Dynamic shared memory: kKeys + kChunk rows of d4
// floats.
template <bool kRound, class Q, class W>
__global__ void __launch_bounds__(kThreads)
    index_scores_kernel(Inputs in, const Q* q, const W* weights) {
  ptx::pdl_start();
  extern __shared__ float4 memory[];  // aligned for the four dims of a step
  __shared__ float sums[kGroups][kKeys];
  const int64_t query = blockIdx.x;
  const int first = static_cast<int>(blockIdx.y) * kKeys;
  const int seen = min(max(in.visible[query] - first, 0), kKeys);
  const int key = threadIdx.x % kKeys, group = threadIdx.x / kKeys;
  float* scores = in.scores + query * in.scores_stride + first;
  float sum = 0.f;
  if (seen > 0) {
    const int d4 = static_cast<int>(align_up(in.layout.width, 4));
    auto* keys = reinterpret_cast<float*>(memory);
    float* heads = keys + kKeys * d4;
    load_keys(in, in.pages + in.sequence[query] * in.pages_stride, first, seen, d4, keys);
    for (int chunk = 0; chunk < in.heads; chunk += kChunk) {
      __syncthreads();
      load_heads(in, q + query * in.q_stride, chunk, d4, heads);
      __syncthreads();
      const float* mine = heads + group * kHeadsOfThread * d4;
      float qk[kHeadsOfThread] = {};
      for (int c = 0; c < d4; c += 4) {
        float k[4];
        for (int x = 0; x < 4; ++x) k[x] = keys[(c + x) * kKeys + key];
        for (int h = 0; h < kHeadsOfThread; ++h) {
          const float4 value = *reinterpret_cast<const float4*>(mine + h * d4 + c);
          qk[h] = fmaf(value.x, k[0], qk[h]);
          qk[h] = fmaf(value.y, k[1], qk[h]);
          qk[h] = fmaf(value.z, k[2], qk[h]);
          qk[h] = fmaf(value.w, k[3], qk[h]);
        }
      }
      for (int h = 0; h < kHeadsOfThread; ++h) {
        const int head = chunk + group * kHeadsOfThread + h;
        if (head >= in.heads) break;
        const float weight = to_float(weights[query * in.weight_stride + head]);
        const float scaled = step<kRound>(__fmul_rn(weight, in.weight_scale));
        const float dot = step<kRound>(qk[h]);
        sum += step<kRound>(__fmul_rn(dot < 0.f ? 0.f : dot, scaled));  // NaN is kept
      }
    }
  }
  sums[group][key] = sum;
  __syncthreads();
  if (group != 0 || first + key >= in.n) return;
  for (int g = 1; g < kGroups; ++g) sum += sums[g][key];
  scores[key] = key < seen ? step<kRound>(sum) : -INFINITY;
}

int64_t shared_bytes(const IndexScoresArgs& args) {
  return (kKeys + kChunk) * align_up(args.q.dim(2), 4) * static_cast<int64_t>(sizeof(float));
}

Inputs inputs_of(const IndexScoresArgs& args) {
  return {.q_stride = args.q.stride[0],
          .q_head_stride = args.q.stride[1],
          .weight_stride = args.weights.row_stride(),
          .pages_stride = args.pages.row_stride(),
          .page_bytes = args.keys.pages.row_stride() * item_bytes(args.keys.pages.dtype),
          .scores_stride = args.scores.row_stride(),
          .key_pages = reinterpret_cast<const uint8_t*>(args.keys.pages.data),
          .packed = args.keys.packed(),
          .layout = args.keys.layout,
          .page_entries = args.keys.page_entries,
          .heads = static_cast<int>(args.q.dim(1)),
          .weight_scale = args.weight_scale,
          .pages = args.pages.as<int32_t>(),
          .sequence = args.sequence.as<int32_t>(),
          .visible = args.visible.as<int32_t>(),
          .scores = args.scores.as<float>(),
          .n = static_cast<int>(args.scores.dim(1))};
}

}  // namespace

const char* reject(const Context& context, const IndexScoresArgs& args) {
  return shared_bytes(args) > context.device->info().max_smem_per_block / 2 ? "keys are too wide"
                                                                            : nullptr;
}

void run(const Context& context, const IndexScoresArgs& args) {
  const bool round = context.numerics == Numerics::kOfficial;
  with_float_type(args.q.dtype, [&](auto q) {
    with_float_type(args.weights.dtype, [&](auto w) {
      using Q = decltype(q);
      using W = decltype(w);
      launch(*context.device, "index_scores",
             round ? index_scores_kernel<true, Q, W> : index_scores_kernel<false, Q, W>,
             {.grid = args.q.dim(0),
              .block = kThreads,
              .grid_y = ceil_div(args.scores.dim(1), kKeys),
              .shared = shared_bytes(args),
              .pdl = true},
             inputs_of(args), args.q.as<Q>(), args.weights.as<W>());
    });
  });
}

}  // namespace dsv4::indexer_kernel::cuda
