#include "bench/op_bench.h"
#include "dsv4/base/error.h"
#include "dsv4/ops/parts/quant/quant.h"

namespace dsv4 {
namespace {

struct QuantizeCase {
  bench::Tensor x, codes, scales;
  QuantizeQ8Args args;

  QuantizeCase(int64_t t, int64_t k, DType dtype)
      : x(dtype, {t, k}), codes(DType::kE4M3, {t, k}), scales(DType::kE8M0, {t, k / 128}) {
    bench::fill(x);
    args = {.x = x, .codes = codes, .scales = scales};
  }
};

struct FakeCase {
  bench::Tensor x, out;
  FakeQuantArgs args;

  FakeCase(int64_t t, int64_t k, FakeQuantFormat format, int group)
      : x(DType::kBF16, {t, k}), out(DType::kBF16, {t, k}) {
    bench::fill(x);
    args = {.x = x, .out = out, .format = format, .group = group};
  }
};

struct HadamardCase {
  bench::Tensor x, out;
  HadamardArgs args;

  HadamardCase(int64_t t, int64_t n) : x(DType::kBF16, {t, n}), out(DType::kBF16, {t, n}) {
    bench::fill(x);
    args = {.x = x, .out = out};
  }
};

const bool kRegistered = [] {
  for (const int64_t t : bench::token_counts()) {
    for (const DType dtype : {DType::kBF16, DType::kF32}) {
      bench::register_impls<QuantizeQ8Args>(
          fmt::format("quantize_q8/{}x4096 {}", t, name(dtype)), quantize_q8,
          [=] { return std::make_shared<QuantizeCase>(t, 4096, dtype); });
    }
    bench::register_impls<FakeQuantArgs>(fmt::format("fake_quant s8/{}x448", t), fake_quant, [=] {
      return std::make_shared<FakeCase>(t, 448, FakeQuantFormat::kS8, 64);
    });
    // The queries of the indexer: 64 heads.
    bench::register_impls<FakeQuantArgs>(
        fmt::format("fake_quant s4/{}x128", 64 * t), fake_quant,
        [=] { return std::make_shared<FakeCase>(64 * t, 128, FakeQuantFormat::kS4, 32); });
    bench::register_impls<HadamardArgs>(fmt::format("hadamard/{}x128", 64 * t), hadamard, [=] {
      return std::make_shared<HadamardCase>(64 * t, 128);
    });
  }
  return true;
}();

}  // namespace
}  // namespace dsv4
