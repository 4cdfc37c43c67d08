// One causal prompt, 0.9 of the mass.

#include "bench/op_bench.h"
#include "dsv4/base/error.h"
#include "dsv4/ops/xattn/select/xattn_select_case.h"

namespace dsv4 {
namespace {

const bool kRegistered = [] {
  for (const int n : {8192, 32768, 131072}) {
    if (n > 8192 && !bench::full_size()) continue;
    bench::register_case(
        fmt::format("xattn_select/{}", n), xattn_select, [=](auto& arena, auto& random) {
          return test::random_select(
              arena, random, {.lengths = {{n, n}}, .heads = 32, .odd_tau = 1, .spare = false});
        });
  }
  return true;
}();

}  // namespace
}  // namespace dsv4
