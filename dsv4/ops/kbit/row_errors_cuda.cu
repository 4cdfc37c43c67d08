// The implementation cuda of row_errors.h, one launch.

#include "dsv4/ops/kbit/row_errors.cuh"

#include "dsv4/base/bits.h"
#include "dsv4/device/launch.cuh"
#include "dsv4/ops/kbit/row_errors.h"

namespace dsv4::row_errors_kernel::cuda {

void run(const Context& context, const RowErrorsArgs& args) {
  const RowErrors errors{
      .x = args.x.as<float>(),
      .y = args.y.as<float>(),
      .x_stride = args.x.row_stride(),
      .y_stride = args.y.row_stride(),
      .importance = args.importance.empty() ? nullptr : args.importance.as<float>(),
      .sums = args.sums.as<double>(),
      .sums_stride = args.sums.row_stride(),
      .rows = args.x.dim(0),
      .k = args.x.dim(1)};
  launch(*context.device, "row_errors", row_errors_kernel,
         {.grid = ceil_div(errors.rows, int64_t{kWarps} * kWarp),
          .block = kWarps * kWarp,
          .pdl = true},
         errors);
}

}  // namespace dsv4::row_errors_kernel::cuda
