// The implementation sm90_image of image_linear.h.

#include "dsv4/device/device.h"
#include "dsv4/ops/gemm/sm90/image_rows.h"
#include "dsv4/ops/parts/image_linear/image_linear.h"

namespace dsv4::image_linear_kernel::sm90_image {

namespace image_rows = gemm::image_rows;

// More rows are faster as a product of rows, conversion included. By name, and where bits must not
// depend on the batch, any number is taken.
constexpr int64_t kChosenRows = 16;

const char* reject(const Context& context, const ImageLinearArgs& args) {
  if (context.numerics == Numerics::kExact) return "exact numerics";
  const bool any = context.need_batch_invariant || !context.force_impl.empty();
  if (args.x.dim(0) > kChosenRows && !any) return "more than 16 rows";
  if (const char* why = image_rows::reject_rows(*context.device, args.x)) return why;
  return image_rows::reject_weight(args.weight);
}

void run(const Context& context, const ImageLinearArgs& args) {
  image_rows::run_dense(*context.device, args.weight, args.x, args.out);
}

}  // namespace dsv4::image_linear_kernel::sm90_image
