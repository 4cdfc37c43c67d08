#include "dsv4/ops/kbit/kbit_weight.h"

#include <cmath>

#include "dsv4/formats/kbit.h"
#include "dsv4/ops/kbit/quantize_kbit.h"
#include "tests/harness/errors.h"
#include "tests/harness/op_check.h"

namespace dsv4 {
namespace {

using test::Arena;

// A small matrix through the plain-view surface: quantise, then read back.
struct Weight {
  Arena arena;
  Codebook book;
  TensorView x, planes, scales, codebook;

  Weight(int64_t n, int64_t blocks, int bits)
      : book(bnf_codebook(bits)),
        x(arena.inout(DType::kF32, {n, blocks * 32})),
        planes(arena.inout(DType::kI32, {n, blocks, bits})),
        scales(arena.inout(DType::kU8, {n, blocks})),
        codebook(arena.inout(DType::kF32, {book.size()})) {
    Rng rng(8);
    test::fill_normal(x, rng, 0.05);
    std::copy_n(book.value.data(), book.size(), codebook.as<float>());
    quantize_kbit(
        {},
        {.x = x, .codebook = book, .planes = planes.reshape({n, blocks * bits}), .scales = scales});
  }
  KbitWeight weight() const { return {.planes = planes, .scales = scales, .codebook = codebook}; }
};

TEST(KbitWeight, ReadsBackWhatWasQuantised) {
  for (int bits = kMinKbit; bits <= kMaxKbit; ++bits) {
    const Weight w(5, 3, bits);
    Arena arena;
    const TensorView out = arena.output(DType::kF32, {5, 96});
    dequantize_kbit(w.weight(), out);
    for (int64_t i = 0; i < out.numel(); ++i) {
      const int64_t block = i / 32;
      const uint8_t code =
          kbit_code(w.planes.as<uint32_t>() + block * bits, bits, static_cast<int>(i % 32));
      EXPECT_EQ(out.as<float>()[i],
                w.book.value[code] * e4m4_to_f32(w.scales.as<uint8_t>()[block]));
    }
  }
}

TEST(KbitWeight, PlanesMayHaveTwoAxesOrThree) {
  const Weight w(4, 2, 3);
  KbitWeight two = w.weight();
  two.planes = w.planes.reshape({4, 6});
  EXPECT_EQ(two.view().data.data, w.weight().view().data.data);
  EXPECT_EQ(to_string(two.view().data), to_string(w.weight().view().data));
  EXPECT_EQ(two.view().k, 64);
}

TEST(KbitWeight, LinearIsTheProductWithWhatIsReadBack) {
  for (int bits = kMinKbit; bits <= kMaxKbit; ++bits) {
    for (const int64_t t : {0, 1, 6}) {
      const Weight w(9, 5, bits);
      Arena arena;
      Rng rng(9);
      const TensorView x = arena.input(DType::kF32, {t, 160});
      const TensorView values = arena.output(DType::kF32, {9, 160});
      const TensorView out = arena.output(DType::kF32, {t, 9});
      test::fill_normal(x, rng);
      dequantize_kbit(w.weight(), values);
      kbit_linear(w.weight(), x, out);
      for (int64_t i = 0; i < out.numel(); ++i) {
        double sum = 0, magnitude = 0;
        for (int64_t k = 0; k < 160; ++k) {
          const double product = static_cast<double>(x.row<float>(i / 9)[k]) *
                                 static_cast<double>(values.row<float>(i % 9)[k]);
          sum += product;
          magnitude += std::abs(product);
        }
        // 160 f32 additions and a product or two each, half an ulp of what is summed.
        EXPECT_NEAR(static_cast<double>(out.as<float>()[i]), sum, 164 * 0x1p-24 * magnitude);
      }
    }
  }
}

TEST(KbitWeight, SaysWhatIsWrong) {
  const Weight w(4, 2, 3);
  KbitWeight wrong = w.weight();
  wrong.codebook = wrong.codebook.slice(0, 0, 4);
  EXPECT_EQ(test::error_of([&] { wrong.view(); }),
            "planes: want [n=4, k/32=2, 2] I32, got [4, 2, 3] I32");
  wrong.codebook = w.weight().codebook.slice(0, 0, 5);
  EXPECT_TRUE(test::says(test::error_of([&] { wrong.view(); }), "4, 8, 16 or 32 values, got 5"));
  wrong = w.weight();
  wrong.scales = w.planes;
  EXPECT_TRUE(test::says(test::error_of([&] { wrong.view(); }), "scales: want"));
}

}  // namespace
}  // namespace dsv4
