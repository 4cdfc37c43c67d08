#include "bench/op_bench.h"
#include "dsv4/base/error.h"
#include "dsv4/ops/model/embed/embed_case.h"

namespace dsv4 {
namespace {

const bool kRegistered = [] {
  for (const int64_t t : bench::token_counts()) {
    bench::register_case(fmt::format("embed/{}x4x4096", t), embed, [=](auto& arena, auto& random) {
      return test::random_embed(arena, random, {.t = t, .d = 4096, .vocabulary = 32768});
    });
  }
  return true;
}();

}  // namespace
}  // namespace dsv4
