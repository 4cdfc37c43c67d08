#include "dsv4/ops/kbit/repack_kbit.h"

#include <algorithm>

#include "dsv4/cpu/parallel.h"
#include "dsv4/formats/kbit.h"

namespace dsv4::repack_kbit_kernel::cpu {
namespace {

// A thread moves this many rows at a time, so that their flat runs stay in its cache.
constexpr int64_t kRows = 64;

// Two blocks of a row are neighbors in both layouts, so an item is two blocks of `width` words (or
// scales). With an odd number of blocks, the last item is half empty.
//   flat: [n, blocks * width]      tiled: [ceil(blocks / 2), n, 2 * width]
template <class T>
void repack(Repack direction, const ConstTensorView& in, const TensorView& out, int64_t n,
            int64_t blocks, int64_t width) {
  const int64_t tiles = ceil_div(blocks, 2);
#pragma omp parallel for if (dsv4::cpu::worth_sharing(n * blocks * width))
  for (int64_t first = 0; first < n; first += kRows) {
    for (int64_t tile = 0; tile < tiles; ++tile) {
      const int64_t words = std::min<int64_t>(2, blocks - 2 * tile) * width;
      for (int64_t row = first; row < std::min(n, first + kRows); ++row) {
        const int64_t item = (tile * n + row) * 2 * width;
        if (direction == Repack::kToTiled) {
          T* to = out.as<T>() + item;
          std::copy_n(in.row<T>(row) + tile * 2 * width, words, to);
          std::fill(to + words, to + 2 * width, T{0});
        } else {
          std::copy_n(in.as<T>() + item, words, out.row<T>(row) + tile * 2 * width);
        }
      }
    }
  }
}

}  // namespace

void run(const Context&, const RepackKbitArgs& args) {
  const ConstTensorView flat =
      args.direction == Repack::kToTiled ? args.scales_in : ConstTensorView(args.scales_out);
  const int64_t n = flat.dim(0), blocks = flat.dim(1);
  repack<uint32_t>(args.direction, args.planes_in, args.planes_out, n, blocks, args.bits);
  repack<uint8_t>(args.direction, args.scales_in, args.scales_out, n, blocks, 1);
}

}  // namespace dsv4::repack_kbit_kernel::cpu
