#include "bench/op_bench.h"
#include "dsv4/base/error.h"
#include "dsv4/ops/parts/rope/rope_case.h"

namespace dsv4 {
namespace {

const bool kRegistered = [] {
  for (const int64_t t : bench::token_counts()) {
    for (const int64_t h : {1, 64}) {
      for (const DType dtype : {DType::kBF16, DType::kF32}) {
        bench::register_case(fmt::format("rope/{}x{}x512 {}", t, h, name(dtype)), rope,
                             [=](auto& arena, auto& random) {
                               return test::random_rope(arena, random,
                                                        {.t = t,
                                                         .h = h,
                                                         .d = 512,
                                                         .dtype = dtype,
                                                         .base = 160000,
                                                         .yarn = {.on = true},
                                                         .first = 100'000,
                                                         .last = 104'096});
                             });
      }
    }
  }
  return true;
}();

}  // namespace
}  // namespace dsv4
