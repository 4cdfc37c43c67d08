#include <algorithm>

#include "bench/op_bench.h"
#include "dsv4/base/error.h"
#include "dsv4/ops/parts/rope/rope.h"

namespace dsv4 {
namespace {

struct Case {
  bench::Tensor x, positions, freqs;
  RopeArgs args;

  Case(int64_t t, int64_t h, DType dtype)
      : x(dtype, {t, h, 512}), positions(DType::kI32, {t}), freqs(DType::kF32, {32}) {
    const std::vector<float> table = rope_frequencies(64, 160000, {.on = true});
    std::copy(table.begin(), table.end(), freqs.as<float>());
    bench::fill_ascending(positions, 100'000);
    args = {.x = x, .positions = positions, .freqs = freqs};
  }
};

const bool kRegistered = [] {
  for (const int64_t t : bench::token_counts()) {
    for (const int64_t h : {1, 64}) {
      for (const DType dtype : {DType::kBF16, DType::kF32}) {
        bench::register_impls<RopeArgs>(fmt::format("rope/{}x{}x512 {}", t, h, name(dtype)), rope,
                                        [=] { return std::make_shared<Case>(t, h, dtype); });
      }
    }
  }
  return true;
}();

}  // namespace
}  // namespace dsv4
