// Each thread copies one run of a row into all streams, so the table is read once.

#include "dsv4/base/bits.h"
#include "dsv4/device/launch.cuh"
#include "dsv4/device/pack.cuh"
#include "dsv4/device/ptx/griddep.cuh"
#include "dsv4/ops/model/embed/embed.h"

namespace dsv4::embed_kernel::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWide = 8;  // elements of a run when rows are aligned to it

// grid: [t, columns / (kThreads * kRun)]
template <int kRun, class In, class Out>
__global__ void embed_kernel(const int32_t* ids, const In* table, int64_t table_stride,
                             int64_t first, int64_t rows, Out* out, int64_t token_stride,
                             int64_t stream_stride, int streams, int d) {
  ptx::pdl_start();
  const int column =
      (static_cast<int>(blockIdx.y) * kThreads + static_cast<int>(threadIdx.x)) * kRun;
  if (column >= d) return;
  float x[kRun];
  const int64_t row = ids[blockIdx.x] - first;
  if (row >= 0 && row < rows) {
    load<kRun>(table + row * table_stride + column, x);
  } else {
    for (float& one : x) one = 0.f;
  }
  out += blockIdx.x * token_stride + column;
  for (int m = 0; m < streams; ++m) store<kRun>(out + m * stream_stride, x);
}

}  // namespace

void run(const Context& context, const EmbedArgs& args) {
  const int64_t d = args.out.dim(2);
  const bool wide = packs(args.table, kWide) && packs(args.out, kWide);
  with_stored_type(args.table.dtype, [&](auto in) {
    with_float_type(args.out.dtype, [&](auto out) {
      using In = decltype(in);
      using Out = decltype(out);
      launch(*context.device, "embed",
             wide ? embed_kernel<kWide, In, Out> : embed_kernel<1, In, Out>,
             {.grid = args.ids.dim(0),
              .block = kThreads,
              .grid_y = ceil_div(d, kThreads * (wide ? kWide : 1)),
              .pdl = true},
             args.ids.as<int32_t>(), args.table.as<In>(), args.table.row_stride(),
             args.first.value_or(0), args.table.dim(0), args.out.as<Out>(), args.out.stride[0],
             args.out.stride[1], args.out.dim(1), d);
    });
  });
}

}  // namespace dsv4::embed_kernel::cuda
