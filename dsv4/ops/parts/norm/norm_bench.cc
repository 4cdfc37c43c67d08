#include "bench/op_bench.h"
#include "dsv4/base/error.h"
#include "dsv4/ops/parts/norm/norm.h"

namespace dsv4 {
namespace {

struct RmsCase {
  bench::Tensor x, weight, out;
  RmsNormArgs args;

  RmsCase(int64_t t, int64_t d)
      : x(DType::kBF16, {t, d}), weight(DType::kF32, {d}), out(DType::kBF16, {t, d}) {
    for (const bench::Tensor* tensor : {&x, &weight}) bench::fill(*tensor);
    args = {.x = x, .weight = weight, .out = out};
  }
};

struct HeadCase {
  bench::Tensor x, out;
  HeadNormArgs args;

  HeadCase(int64_t rows, int64_t d) : x(DType::kBF16, {rows, d}), out(DType::kBF16, {rows, d}) {
    bench::fill(x);
    args = {.x = x, .out = out};
  }
};

const bool kRegistered = [] {
  for (const int64_t t : bench::token_counts()) {
    for (const int64_t d : {1024, 4096}) {
      bench::register_impls<RmsNormArgs>(fmt::format("rms_norm/{}x{}", t, d), rms_norm,
                                         [=] { return std::make_shared<RmsCase>(t, d); });
    }
    bench::register_impls<HeadNormArgs>(fmt::format("head_norm/{}x512", 64 * t), head_norm,
                                        [=] { return std::make_shared<HeadCase>(64 * t, 512); });
  }
  return true;
}();

}  // namespace
}  // namespace dsv4
