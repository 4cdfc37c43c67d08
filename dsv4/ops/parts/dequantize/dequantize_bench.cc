// dequantize: FORMAT (k-bit by bits) of 4096 x 4096 to f32 and bf16. Each call reads another
// matrix, so weights come from memory.

#include "dsv4/base/error.h"
#include "dsv4/ops/parts/dequantize/dequantize_case.h"

#include "bench/op_bench.h"
#include "bench/weight_pool.h"

namespace dsv4 {
namespace {

constexpr int64_t kN = 4096, kK = 4096;

struct Case {
  WeightFormat format;
  int bits;
  bench::WeightPool pool;
  bench::Arena arena;
  DequantizeArgs args;

  Case(WeightFormat stored, int bits_of_code, DType dtype) : format(stored), bits(bits_of_code) {
    args = test::dequantize_to(arena, dtype, pool.next(format, kN, kK, bits));
  }
  void next() { args.weight = pool.next(format, kN, kK, bits); }
};

void add(WeightFormat format, int bits, DType dtype) {
  const std::string stored = bits == 0 ? name(format) : fmt::format("k{}", bits);
  bench::register_impls<DequantizeArgs>(
      fmt::format("dequantize/{} to {}", stored, name(dtype)), dequantize,
      [=] { return std::make_shared<Case>(format, bits, dtype); });
}

const bool kRegistered = [] {
  for (const int bits : {2, 3, 4, 5}) add(WeightFormat::kKbit, bits, DType::kBF16);
  for (const DType dtype : {DType::kF16, DType::kF32}) add(WeightFormat::kKbit, 4, dtype);
  for (const WeightFormat format :
       {WeightFormat::kMxfp4, WeightFormat::kNvfp4, WeightFormat::kFp8Block, WeightFormat::kBF16}) {
    add(format, 0, DType::kBF16);
  }
  return true;
}();

}  // namespace
}  // namespace dsv4
