// The bytes of images are those of formats/pack_kbit_image.h, whose test proves them; rows come
// back as they were.

#include "dsv4/ops/kbit/repack_image.h"

#include "dsv4/base/error.h"
#include "dsv4/formats/pack_kbit_image.h"
#include "tests/harness/errors.h"
#include "tests/harness/op_check.h"
#include "tests/harness/weights.h"

namespace dsv4 {
namespace {

using test::Arena;

std::vector<double> values(const ConstTensorView& view) {
  std::vector<double> all;
  for (int64_t i = 0; i < view.numel(); ++i) all.push_back(test::value_at(view, i));
  return all;
}

std::vector<uint8_t> image_of(const WeightView& weight) {
  const KbitImage image = kbit_image(weight);
  std::vector<uint8_t> bytes(static_cast<size_t>(image.bytes()));
  const auto strip = static_cast<size_t>(image.strip_bytes());
  for (int64_t s = 0; s < image.num_strips(); ++s)
    pack_kbit_strip(image, {&weight, 1}, s,
                    std::span(bytes).subspan(static_cast<size_t>(s) * strip, strip));
  return bytes;
}

void check_both_ways(const test::StoredAs& stored, int64_t n, int64_t k, bool symmetric) {
  SCOPED_TRACE(fmt::format("{} [{}, {}]", name(stored), n, k));
  Rng rng(static_cast<uint64_t>(n + k + stored.bits));
  Arena arena;
  const WeightView weight = test::random_weight(arena, rng, stored, n, k);
  if (!symmetric) {
    auto* codebook = const_cast<float*>(weight.codebook.as<float>());
    codebook[0] *= 2;
  }
  const std::vector<uint8_t> bytes = image_of(weight);
  const RepackImageArgs there{
      .weight = weight,
      .image_out = arena.output(DType::kU8, {static_cast<int64_t>(bytes.size())})};
  repack_image.check(there);
  test::OpCase<RepackImageArgs> test{.name = "to image", .args = there};
  test.outputs = {{"image", there.image_out, {bytes.begin(), bytes.end()}, {.ulps = 0}}};
  check_op(repack_image.impls, {}, arena, test);

  Arena second;
  const TensorView image = second.input(DType::kU8, {static_cast<int64_t>(bytes.size())});
  std::copy(bytes.begin(), bytes.end(), image.as<uint8_t>());
  RepackImageArgs back{.to_image = false,
                       .weight = weight,
                       .data = second.output(weight.data.dtype, {n, weight.data.dim(1)}),
                       .scale = second.output(weight.scale.dtype, {n, weight.scale.dim(1)}),
                       .image = image};
  back.weight.data = back.data, back.weight.scale = back.scale;
  if (!weight.codebook.empty()) {
    const TensorView codebook = second.input(DType::kF32, {weight.codebook.dim(0)});
    std::copy_n(weight.codebook.as<float>(), weight.codebook.dim(0), codebook.as<float>());
    second.keep_order(codebook);
    back.weight.codebook = codebook;
  }
  repack_image.check(back);
  test::OpCase<RepackImageArgs> rows{.name = "to rows", .args = back};
  rows.outputs = {{"data", back.data, values(weight.data), {.ulps = 0}},
                  {"scale", back.scale, values(weight.scale), {.ulps = 0}}};
  check_op(repack_image.impls, {}, second, rows);
}

TEST(RepackImage, ThereAndBack) {
  for (const int64_t n : {16, 40}) {
    for (const int64_t k : {32, 288, 512}) {
      for (int bits = kMinKbit; bits <= kMaxKbit; ++bits) {
        check_both_ways({WeightFormat::kKbit, bits}, n, k, true);
        check_both_ways({WeightFormat::kKbit, bits}, n, k, false);
      }
      check_both_ways({WeightFormat::kMxfp4}, n, k, true);
      check_both_ways({WeightFormat::kNvfp4}, n, k, true);
    }
  }
}

TEST(RepackImage, ReportsErrors) {
  Arena arena;
  Rng rng(1);
  const WeightView weight = test::random_weight(arena, rng, {WeightFormat::kKbit, 3}, 16, 64);
  RepackImageArgs args{.weight = weight, .image_out = arena.output(DType::kU8, {100})};
  const auto error = [&] { return test::error_of([&] { repack_image({}, args); }); };
  EXPECT_TRUE(test::says(error(), "an image of 100 bytes: want")) << error();
  args.weight = test::random_weight(arena, rng, {WeightFormat::kBF16}, 16, 64);
  EXPECT_TRUE(test::says(error(), "an image of bf16 weights")) << error();
}

}  // namespace
}  // namespace dsv4
