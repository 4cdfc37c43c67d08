// One CTA per query: radix selection of the k-th largest score, then the selected entries in
// ascending order (device/select.cuh). The row is read five times, from L2.

#include "dsv4/device/launch.cuh"
#include "dsv4/device/ptx/griddep.cuh"
#include "dsv4/device/select.cuh"
#include "dsv4/ops/parts/indexer/indexer.h"

namespace dsv4::indexer_kernel::cuda {
namespace {

// Cache rows of logical entries; without pages, the entries themselves.
struct Translation {
  const int32_t* pages;  // [b, max_pages]
  int64_t stride;
  const int32_t* sequence;  // [t]
  int page_entries;
};

struct Scores {
  const float* scores;  // [n]

  __device__ float load(int s) const { return scores[s]; }
  __device__ uint32_t key(float score, int) const { return order_key(score); }
};

__global__ void __launch_bounds__(kSelectThreads)
    top_k_kernel(const float* scores, int64_t scores_stride, const int32_t* visible,
                 Translation translation, int32_t* indices, int64_t indices_stride, int k) {
  ptx::pdl_start();
  __shared__ SelectShared shared;
  scores += blockIdx.x * scores_stride;
  indices += blockIdx.x * indices_stride;
  const int32_t* pages = nullptr;
  if (translation.pages != nullptr) {
    pages = translation.pages + translation.sequence[blockIdx.x] * translation.stride;
  }
  const int n = visible[blockIdx.x];
  const Scores source{scores};
  const auto row_of = [&](int s) {
    const int entries = translation.page_entries;
    return pages == nullptr ? s : pages[s / entries] * entries + s % entries;
  };
  const Selection chosen = select_largest(source, n, k, shared);
  const int count = visit_selected(source, n, chosen, shared,
                                   [&](int rank, int s, uint32_t) { indices[rank] = row_of(s); });
  for (int rank = count + threadIdx.x; rank < k; rank += kSelectThreads) indices[rank] = -1;
}

}  // namespace

void run(const Context& context, const TopKArgs& args) {
  const int64_t k = args.indices.dim(1);
  if (k == 0) return;
  Translation translation{};
  if (!args.pages.empty()) {
    translation = {.pages = args.pages.as<int32_t>(),
                   .stride = args.pages.row_stride(),
                   .sequence = args.sequence.as<int32_t>(),
                   .page_entries = args.page_entries};
  }
  launch(*context.device, "top_k", top_k_kernel,
         {.grid = args.scores.dim(0), .block = kSelectThreads, .pdl = true},
         args.scores.as<float>(), args.scores.row_stride(), args.visible.as<int32_t>(), translation,
         args.indices.as<int32_t>(), args.indices.row_stride(), k);
}

}  // namespace dsv4::indexer_kernel::cuda
