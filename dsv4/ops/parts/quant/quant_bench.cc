#include "bench/op_bench.h"
#include "dsv4/base/error.h"
#include "dsv4/ops/parts/quant/quant_case.h"

namespace dsv4 {
namespace {

void add_fake_quant(const char* name, int64_t t, int64_t k, FakeQuantFormat format, int group) {
  bench::register_case(fmt::format("fake_quant {}/{}x{}", name, t, k), fake_quant,
                       [=](auto& arena, auto& random) {
                         const TensorView x = test::random_x(arena, random, DType::kBF16, t, k);
                         return test::fake_quant_of(arena, x, DType::kBF16, format, group);
                       });
}

const bool kRegistered = [] {
  for (const int64_t t : bench::token_counts()) {
    for (const DType dtype : {DType::kBF16, DType::kF32}) {
      bench::register_case(fmt::format("quantize_q8/{}x4096 {}", t, name(dtype)), quantize_q8,
                           [=](auto& arena, auto& random) {
                             return test::quantize_q8_of(
                                 arena, test::random_x(arena, random, dtype, t, 4096), 128);
                           });
    }
    add_fake_quant("s8", t, 448, FakeQuantFormat::kS8, 64);
    add_fake_quant("s4", 64 * t, 128, FakeQuantFormat::kS4, 32);  // 64 heads of the indexer
    bench::register_case(
        fmt::format("hadamard/{}x128", 64 * t), hadamard, [=](auto& arena, auto& random) {
          return test::random_hadamard(arena, random, 64 * t, 128, DType::kBF16, DType::kBF16);
        });
  }
  return true;
}();

}  // namespace
}  // namespace dsv4
