// One CTA per token; each warp packs one of the groups that share a scale. The bytes are those of
// pack_kv_entry() and pack_index_key().

#include "dsv4/device/launch.cuh"
#include "dsv4/device/ptx/griddep.cuh"
#include "dsv4/device/quantize.cuh"
#include "dsv4/ops/kv_insert/kv_insert_impls.h"

namespace dsv4 {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / kWarp;

// The destination of a token.
template <class Layout>
struct Pages {
  std::byte* data;
  int64_t stride;  // bytes from one page to the next
  Layout layout;
  int page_entries;

  template <class Pool>
  explicit Pages(const Pool& pool)
      : data(pool.pages.data),
        stride(pool.pages.row_stride() * item_bytes(pool.pages.dtype)),
        layout(pool.layout),
        page_entries(pool.page_entries) {}
  template <class T>
  __device__ T* page(int row) const {
    return reinterpret_cast<T*>(data + row / page_entries * stride);
  }
  __device__ int entry(int row) const { return row % page_entries; }
};

template <class T>
__global__ void kv_packed_kernel(const T* x, int64_t x_stride, const int32_t* rows,
                                 Pages<KvLayout> pages) {
  ptx::pdl_start();
  const int row = rows[blockIdx.x];
  if (row < 0) return;
  x += blockIdx.x * x_stride;
  const KvLayout layout = pages.layout;
  const int warp = static_cast<int>(threadIdx.x) / kWarp,
            lane = static_cast<int>(threadIdx.x) % kWarp;
  auto* page = pages.template page<uint8_t>(row);
  uint8_t* codes = page + layout.entry_offset(pages.entry(row));
  uint8_t* scales = page + layout.scale_offset(pages.page_entries, pages.entry(row));
  for (int g = warp; g < layout.scale_bytes(); g += kWarps) {
    const int begin = g * layout.group();
    uint8_t scale = 0;  // the padding
    if (g < layout.num_scales())
      scale = group_quantize_q8<1>(GroupLanes{}, x + begin, layout.group(), codes + begin);
    if (lane == 0) scales[g] = scale;
  }
  // Entries have an even number of bytes, so bf16 values are aligned.
  auto* tail = reinterpret_cast<uint16_t*>(codes + layout.nope);
  for (int c = threadIdx.x; c < layout.rope; c += kThreads)
    tail[c] = f32_to_bf16(to_float(x[layout.nope + c]));
}

template <class T>
__global__ void index_packed_kernel(const T* x, int64_t x_stride, const int32_t* rows,
                                    Pages<IndexLayoutFp4> pages) {
  ptx::pdl_start();
  const int row = rows[blockIdx.x];
  if (row < 0) return;
  x += blockIdx.x * x_stride;
  const IndexLayoutFp4 layout = pages.layout;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  auto* page = pages.template page<uint8_t>(row);
  uint8_t* pairs = page + layout.code_offset(pages.entry(row));
  uint8_t* scales = page + layout.scale_offset(pages.page_entries, pages.entry(row));
  static_assert(IndexLayoutFp4::kGroup == kWarp);  // one element per lane
  for (int g = static_cast<int>(threadIdx.x) / kWarp; g < layout.scale_bytes(); g += kWarps) {
    const int at = g * kWarp + lane;
    const float value = to_float(x[at]);
    const uint8_t scale = q4_scale(warp_max(fmaxf(0.f, fabsf(value))));
    const uint8_t code = f32_to_e2m1(value * inverse_scale(scale));
    const auto next = static_cast<uint8_t>(__shfl_down_sync(~0u, unsigned{code}, 1));
    if (lane % 2 == 0) pairs[at / 2] = e2m1_pair(code, next);
    if (lane == 0) scales[g] = scale;
  }
}

template <class T, class Layout>
__global__ void plain_kernel(const T* x, int64_t x_stride, int width, const int32_t* rows,
                             Pages<Layout> pages) {
  ptx::pdl_start();
  const int row = rows[blockIdx.x];
  if (row < 0) return;
  x += blockIdx.x * x_stride;
  float* out = pages.template page<float>(row) + int64_t{pages.entry(row)} * width;
  for (int c = threadIdx.x; c < width; c += kThreads) out[c] = to_float(x[c]);
}

template <class Layout, class Args, class Packed>
void insert(const Context& context, const char* name, const Args& args, const Packed& packed) {
  const Pages<Layout> pages(args.pool);
  const LaunchShape shape{.grid = args.x.dim(0), .block = kThreads, .pdl = true};
  const auto* rows = args.rows.template as<int32_t>();
  with_float_type(args.x.dtype, [&](auto element) {
    using T = decltype(element);
    const auto* x = args.x.template as<T>();
    if (args.pool.packed()) {
      launch(*context.device, name, packed(element), shape, x, args.x.row_stride(), rows, pages);
    } else {
      launch(*context.device, name, plain_kernel<T, Layout>, shape, x, args.x.row_stride(),
             args.x.dim(1), rows, pages);
    }
  });
}

}  // namespace

void kv_insert_cuda(const Context& context, const KvInsertArgs& args) {
  insert<KvLayout>(context, "kv_insert", args,
                   [](auto element) { return kv_packed_kernel<decltype(element)>; });
}

void index_insert_cuda(const Context& context, const IndexInsertArgs& args) {
  insert<IndexLayoutFp4>(context, "index_insert", args,
                         [](auto element) { return index_packed_kernel<decltype(element)>; });
}

}  // namespace dsv4
