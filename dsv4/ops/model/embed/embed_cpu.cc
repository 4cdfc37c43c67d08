#include "dsv4/ops/model/embed/embed.h"

#include <algorithm>
#include <vector>

#include "dsv4/base/error.h"
#include "dsv4/cpu/parallel.h"
#include "dsv4/cpu/rows.h"

namespace dsv4::embed_kernel::cpu {

void run(const Context&, const EmbedArgs& args) {
  const int64_t tokens = args.ids.dim(0), streams = args.out.dim(1), d = args.out.dim(2);
  const int64_t vocabulary = args.table.dim(0);
  const int64_t first = args.first.value_or(0);
  const int32_t* ids = args.ids.as<int32_t>();
  for (int64_t t = 0; t < tokens && !args.first; ++t) {  // checked before anything is written
    DSV4_CHECK(ids[t] >= -1 && ids[t] < vocabulary, "ids[{}] is {}, the table has {} rows", t,
               ids[t], vocabulary);
  }
#pragma omp parallel if (dsv4::cpu::worth_sharing(2 * args.out.numel()))
  {
    std::vector<float> row(static_cast<size_t>(d));
#pragma omp for
    for (int64_t t = 0; t < tokens; ++t) {
      const int64_t at = ids[t] - first;
      if (at < 0 || at >= vocabulary) {
        std::ranges::fill(row, 0.f);
      } else {
        dsv4::cpu::load(args.table, at * args.table.row_stride(), d, row.data());
      }
      for (int64_t m = 0; m < streams; ++m) {
        dsv4::cpu::store(args.out, t * args.out.stride[0] + m * args.out.stride[1], d, row.data());
      }
    }
  }
}

}  // namespace dsv4::embed_kernel::cpu
