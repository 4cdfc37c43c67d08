// One CTA per token (packed_rows.cuh).

#include "dsv4/device/launch.cuh"
#include "dsv4/device/ptx/griddep.cuh"
#include "dsv4/ops/parts/kv_insert/kv_insert.h"
#include "dsv4/ops/parts/kv_insert/packed_rows.cuh"

namespace dsv4::kv_insert_kernel::cuda {
namespace {

constexpr int kThreads = 256;

template <class T>
__global__ void kv_packed_kernel(const T* x, int64_t x_stride, const int32_t* rows,
                                 PackedPages<KvLayout> pages) {
  ptx::pdl_start();
  const int row = rows[blockIdx.x];
  if (row < 0) return;
  x += blockIdx.x * x_stride;
  if (pages.layout.v32()) {
    pack_v32_row(pages, row, x);
  } else {
    pack_kv_columns(pages, row, x, {0, pages.layout.width()});
  }
}

template <class T>
__global__ void index_packed_kernel(const T* x, int64_t x_stride, const int32_t* rows,
                                    PackedPages<IndexLayoutFp4> pages) {
  ptx::pdl_start();
  const int row = rows[blockIdx.x];
  if (row >= 0) pack_index_row(pages, row, x + blockIdx.x * x_stride);
}

template <class T, class Layout>
__global__ void plain_kernel(const T* x, int64_t x_stride, int width, const int32_t* rows,
                             PackedPages<Layout> pages) {
  ptx::pdl_start();
  const int row = rows[blockIdx.x];
  if (row < 0) return;
  x += blockIdx.x * x_stride;
  float* out = pages.template page<float>(row) + int64_t{pages.entry(row)} * width;
  for (int c = threadIdx.x; c < width; c += kThreads) out[c] = to_float(x[c]);
}

template <class Layout, class Args, class Packed>
void insert(const Context& context, const char* name, const Args& args, const Packed& packed) {
  const PackedPages<Layout> pages(args.pool);
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

void run(const Context& context, const KvInsertArgs& args) {
  insert<KvLayout>(context, "kv_insert", args,
                   [](auto element) { return kv_packed_kernel<decltype(element)>; });
}

void run(const Context& context, const IndexInsertArgs& args) {
  insert<IndexLayoutFp4>(context, "index_insert", args,
                         [](auto element) { return index_packed_kernel<decltype(element)>; });
}

}  // namespace dsv4::kv_insert_kernel::cuda
