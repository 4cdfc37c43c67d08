#include "bench/op_bench.h"
#include "dsv4/base/error.h"
#include "dsv4/ops/parts/router/router_case.h"

namespace dsv4 {
namespace {

const bool kRegistered = [] {
  for (const int64_t t : bench::token_counts()) {
    bench::register_case(
        fmt::format("router/{} tokens 6 of 256", t), router,
        [=](auto& arena, auto& random) { return test::random_router(arena, random, t, 256, 6); });
  }
  return true;
}();

}  // namespace
}  // namespace dsv4
