// The implementation sm90_kbit_wide of linear.h: some to some hundreds of rows times k-bit weights
// with any codebook, on Hopper (gemm/sm90/kbit_wide.h).

#include "dsv4/ops/gemm/sm90/kbit_wide.h"
#include "dsv4/ops/parts/linear/linear.h"

namespace dsv4::linear_kernel::sm90_kbit_wide {

namespace kernel = gemm::kbit_wide;

// Rows for which it is chosen; by name it takes any number. cuda_kbit has tiles of 8 and 16 rows,
// and with smaller weights those of 16 are faster.
constexpr int64_t kMostRows = 512;
constexpr int64_t kLargeWeight = int64_t{1} << 24;  // values
static int64_t least_rows(const WeightView& weight) {
  return weight.n * weight.k > kLargeWeight ? 9 : 17;
}

static kernel::Product product_of(const LinearArgs& args) {
  return {.x = args.x, .weight = args.weight, .out = args.out};
}

const char* reject(const Context& context, const LinearArgs& args) {
  if (const char* why = reject_quantize(args)) return why;
  if (args.groups != 1) return "groups";
  if (context.force_impl.empty()) {
    // Fewer rows take kernels that add in another order.
    if (context.need_batch_invariant) return "rows alone take another kernel";
    const int64_t rows = args.x.dim(0);
    if (rows < least_rows(args.weight) || rows > kMostRows) return "for 9 or 17 to 512 rows";
  }
  return kernel::reject(context, product_of(args));
}

double rounding(const LinearArgs& args) {
  return kernel::rounding(args.x.dtype);
}

void run(const Context& context, const LinearArgs& args) {
  kernel::run(context, product_of(args));
}

}  // namespace dsv4::linear_kernel::sm90_kbit_wide
