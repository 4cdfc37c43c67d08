// Reference mode of quantize_kbit and the codebooks against tests/golden/kbit, bit for bit.

#include <gtest/gtest.h>

#include <algorithm>

#include "dsv4/base/error.h"
#include "dsv4/loader/safetensors.h"
#include "dsv4/ops/kbit/quantize_kbit.h"
#include "tests/harness/targets.h"

namespace dsv4 {
namespace {

// On failure, reports the first element that differs.
template <class T>
void expect_same(const ConstTensorView& got, const ConstTensorView& want, const char* what) {
  ASSERT_EQ(got.numel(), want.numel()) << what;
  const T *g = got.as<T>(), *w = want.as<T>();
  const auto [at, other] = std::mismatch(g, g + got.numel(), w);
  EXPECT_TRUE(at == g + got.numel())
      << what << " element " << at - g << ": " << uint64_t{*at} << " for " << uint64_t{*other};
}

void check_golden(const SafetensorsFile& file, const std::string& name, const Codebook& book) {
  SCOPED_TRACE(name);
  const auto golden = [&](const char* part) { return file.tensors().at(name + part); };
  const ConstTensorView codebook(TensorMeta::contiguous(DType::kF32, {book.size()}),
                                 reinterpret_cast<const std::byte*>(book.value.data()));
  expect_same<uint32_t>(codebook, golden(".codebook"), "codebook");
  const ConstTensorView x = golden(".x"), scales = golden(".scales"), planes = golden(".planes");
  const Buffer got_planes(DType::kI32, {planes.dim(0), planes.dim(1)});
  const Buffer got_scales(DType::kU8, {scales.dim(0), scales.dim(1)});
  quantize_kbit({}, {.x = x,
                     .codebook = book,
                     .choice = ScaleChoice::kReference,
                     .planes = got_planes,
                     .scales = got_scales});
  expect_same<uint32_t>(got_planes, planes, "planes");
  expect_same<uint8_t>(got_scales, scales, "scales");
}

TEST(KbitGolden, ReferenceBitForBit) {
  const SafetensorsFile file("tests/golden/kbit/kbit.safetensors");
  test::for_each_target([&] {
    for (int bits = kMinKbit; bits <= kMaxKbit; ++bits) {
      check_golden(file, fmt::format("nf{}", bits), nf_codebook(bits));
      check_golden(file, fmt::format("bnf{}", bits), bnf_codebook(bits));
    }
  });
}

}  // namespace
}  // namespace dsv4
