#include "dsv4/ops/parts/dequantize/dequantize_oracle.h"

namespace dsv4 {

std::vector<double> dequantize_oracle(const DequantizeArgs& args) {
  std::vector<double> out;
  for (int64_t n = 0; n < args.weight.n; ++n) {
    for (int64_t k = 0; k < args.weight.k; ++k) out.push_back(weight_value(args.weight, n, k));
  }
  return out;
}

}  // namespace dsv4
