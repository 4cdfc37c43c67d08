// image_linear/FORMAT/t/n/k: the shapes of linear/kbitK. Each call uses another image, so weights
// are read from memory.

#include <memory>
#include <vector>

#include "bench/op_bench.h"
#include "bench/weight_pool.h"
#include "dsv4/base/error.h"
#include "dsv4/formats/pack_kbit_image.h"
#include "dsv4/ops/parts/image_linear/image_linear.h"
#include "dsv4/ops/parts/linear/linear_case.h"

namespace dsv4 {
namespace {

struct Shape {
  int64_t t, n, k;
};

struct Case {
  WeightFormat format;
  int bits;
  Shape shape;
  bench::WeightPool pool;
  bench::Arena arena;
  ImageLinearArgs args;

  Case(WeightFormat stored, int stored_bits, const Shape& s)
      : format(stored), bits(stored_bits), shape(s) {
    Rng rng(1);
    const LinearArgs rows = test::random_linear(
        arena, rng, {.t = s.t, .x = DType::kBF16, .out = DType::kBF16},
        {.format = format, .n = s.n, .k = s.k, .bits = bits, .e4m3_codebook = true});
    args = {.x = rows.x, .weight = rows.weight, .out = rows.out};
    next();
  }
  // Bytes of the pool are moderate numbers in every layout.
  void next() { args.weight.data = pool.next_bytes(image_of_format(args.weight).bytes()); }
};

void add(const char* name, WeightFormat format, int bits) {
  for (const auto& [n, k] : {std::pair{8192, 8192}, {14336, 4096}, {5120, 2048}}) {
    for (const int64_t t : {1, 2, 4, 8, 16}) {
      const Shape shape{t, n, k};
      bench::register_impls<ImageLinearArgs>(
          fmt::format("image_linear/{} bf16/t:{}/n:{}/k:{}", name, t, n, k), image_linear,
          [=] { return std::make_shared<Case>(format, bits, shape); }, Arch::kCuda);
    }
  }
}

const bool kRegistered = [] {
  add("kbit2", WeightFormat::kKbit, 2);
  add("kbit3", WeightFormat::kKbit, 3);
  add("kbit4", WeightFormat::kKbit, 4);
  add("mxfp4", WeightFormat::kMxfp4, 0);
  add("nvfp4", WeightFormat::kNvfp4, 0);
  return true;
}();

}  // namespace
}  // namespace dsv4
