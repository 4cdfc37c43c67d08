#include "bench/op_bench.h"
#include "dsv4/base/error.h"
#include "dsv4/ops/parts/norm/norm_case.h"

namespace dsv4 {
namespace {

const bool kRegistered = [] {
  for (const int64_t t : bench::token_counts()) {
    for (const int64_t d : {1024, 4096}) {
      bench::register_case(fmt::format("rms_norm/{}x{}", t, d), rms_norm,
                           [=](auto& arena, auto& random) {
                             return test::random_rms_norm(arena, random, t, d, DType::kBF16,
                                                          DType::kF32, DType::kBF16);
                           });
    }
    bench::register_case(fmt::format("head_norm/{}x512", 64 * t), head_norm,
                         [=](auto& arena, auto& random) {
                           return test::random_head_norm(arena, random, 64 * t, 512, DType::kBF16);
                         });
  }
  return true;
}();

}  // namespace
}  // namespace dsv4
