// One sequence that appends tokens.

#include "bench/op_bench.h"
#include "dsv4/base/error.h"
#include "dsv4/ops/parts/compressor/compressor_case.h"

namespace dsv4 {
namespace {

void add(StateLayout layout, int64_t start, int64_t t) {
  bench::register_case(fmt::format("compressor/r{} d{} {} tokens", layout.ratio, layout.width, t),
                       compressor, [=](auto& arena, auto& random) {
                         return test::random_compressor(arena, random, layout, {start}, {t},
                                                        DType::kBF16);
                       });
}

const bool kRegistered = [] {
  for (const StateLayout layout :
       {StateLayout{4, 512, true}, StateLayout{4, 128, true}, StateLayout{128, 512}}) {
    add(layout, 0, 4096);
    add(layout, 127, 1);  // the token that closes a block
  }
  return true;
}();

}  // namespace
}  // namespace dsv4
