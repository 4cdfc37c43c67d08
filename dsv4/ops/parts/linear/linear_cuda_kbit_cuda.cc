// The implementation cuda_kbit of linear.h: up to 64 rows times k-bit weights with any codebook
// (gemm/cuda/kbit_stream.h).

#include "dsv4/ops/gemm/cuda/kbit_stream.h"
#include "dsv4/ops/parts/linear/linear.h"

namespace dsv4::linear_kernel::cuda_kbit {

namespace kernel = gemm::kbit_stream;

static kernel::Product product_of(const LinearArgs& args) {
  return {.x = args.x, .weight = args.weight, .out = args.out};
}

const char* reject(const Context& context, const LinearArgs& args) {
  if (const char* why = reject_quantize(args)) return why;
  if (args.groups != 1) return "groups";
  return kernel::reject(context, product_of(args));
}

double rounding(const LinearArgs& args) {
  return kernel::rounding(args.x.dtype);
}

void run(const Context& context, const LinearArgs& args) {
  kernel::run(context, product_of(args));
}

}  // namespace dsv4::linear_kernel::cuda_kbit
