// index_select/tTOKENS hHEADS 512 of KEYS, one sequence.

#include "bench/op_bench.h"
#include "dsv4/base/error.h"
#include "dsv4/ops/model/index_select/index_select_case.h"

namespace dsv4 {
namespace {

const bool kRegistered = [] {
  for (const int64_t t : bench::token_counts()) {
    for (const int64_t n : {1024, 16384}) {
      bench::register_case(
          fmt::format("index_select/t{} h64 512 of {}", t, n), index_select,
          [=](auto& arena, auto& random) {
            return test::random_index_select(
                arena, random, {.t = t, .h = 64, .n = n, .all_visible = true, .sequences = 1}, 512);
          });
    }
  }
  return true;
}();

}  // namespace
}  // namespace dsv4
