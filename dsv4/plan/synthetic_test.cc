#include "dsv4/plan/synthetic.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "dsv4/base/error.h"
#include "dsv4/base/mapped_file.h"
#include "dsv4/convert/recipe_codebooks.h"
#include "dsv4/formats/codebook.h"
#include "dsv4/formats/e4m3.h"
#include "dsv4/formats/e4m4.h"
#include "dsv4/formats/float16.h"
#include "dsv4/formats/ue8m0.h"
#include "tests/harness/errors.h"

namespace dsv4 {
namespace {

TensorMeta meta(DType dtype, std::initializer_list<int64_t> shape) {
  return TensorMeta::contiguous(dtype, shape);
}

// The deviation of a weight's values is 1/sqrt(k), to the factor that a power of two can be off.
TEST(SyntheticRule, ScalesGiveUnitActivations) {
  const double wanted = 1 / std::sqrt(4096.0);
  const TensorMeta fp8 = meta(DType::kE4M3, {256, 4096}), fp4 = meta(DType::kI8, {256, 2048});
  const TensorMeta scale = meta(DType::kE8M0, {2, 32});
  const double of_fp8 = kE4M3Deviation * ue8m0_to_f32(synthetic_rule("a.scale", scale, &fp8).byte);
  const double of_fp4 = 2.93 * ue8m0_to_f32(synthetic_rule("a.scale", scale, &fp4).byte);
  EXPECT_LE(std::abs(std::log2(of_fp8 / wanted)), 0.51);
  EXPECT_LE(std::abs(std::log2(of_fp4 / wanted)), 0.51);
  const double of_nvfp4 = 2.93 * static_cast<double>(kNvfp4Scale2) *
                          e4m3_to_f32(synthetic_rule("a.weight_scale", scale, &fp4).byte);
  EXPECT_NEAR(of_nvfp4 / wanted, 1, 0.07);  // a scale has three bits after the point
  for (int bits = kMinKbit; bits <= kMaxKbit; ++bits) {
    const TensorMeta planes = meta(DType::kI32, {256, 128, bits});
    for (const Codebook& book : {e4m3_codebook(bits), bnf_codebook(bits), nf_codebook(bits)}) {
      double squares = 0;
      for (const float v : book.values()) squares += static_cast<double>(v * v);
      const double of_kbit =
          std::sqrt(squares / (1 << bits)) *
          e4m4_to_f32(synthetic_rule("a.scale", scale, &planes, book.values()).byte);
      EXPECT_NEAR(of_kbit / wanted, 1, 0.04) << bits;  // a scale has four bits after the point
    }
  }
}

TEST(SyntheticRule, KnowsKindsByNameAndDtype) {
  const auto kind = [](const char* name, const TensorMeta& m) {
    return synthetic_rule(name, m, nullptr).kind;
  };
  EXPECT_EQ(kind("layers.0.attn.wq_a.weight", meta(DType::kE4M3, {8, 8})), SyntheticKind::kE4M3);
  EXPECT_EQ(kind("layers.0.ffn.experts.1.w1.weight", meta(DType::kI32, {8, 1, 3})),
            SyntheticKind::kBits);
  EXPECT_EQ(kind("head.weight", meta(DType::kBF16, {8, 8})), SyntheticKind::kNormal);
  EXPECT_EQ(kind("norm.weight", meta(DType::kBF16, {8})), SyntheticKind::kHostCopy);
  EXPECT_EQ(kind("layers.0.ffn.gate.bias", meta(DType::kF32, {8})), SyntheticKind::kHostCopy);
}

TEST(SyntheticModel, HasTheLayersAndFormatsAskedFor) {
  const Model model = synthetic_model("flash", recipe_of_flags("k3", ""), 5, 1);
  EXPECT_EQ(model.config().num_layers, 5);
  EXPECT_TRUE(model.weights().unused.empty());
  const LayerWeights& layer = model.weights().layers[4];
  EXPECT_EQ(layer.moe.routed[255].w1.bits, 3);
  EXPECT_EQ(layer.moe.routed[255].w1.scale2, 1.f);
  EXPECT_EQ(layer.attn.wq_b.format, WeightFormat::kFp8Block);
}

// The block has formats of its own in a recipe, and leaves the model as it is.
TEST(SyntheticModel, HasTheBlockThatIsWanted) {
  const Model without = synthetic_model("flash", recipe_of_flags("k3", ""), 2, 1);
  const Model with =
      synthetic_model("flash", recipe_of_flags("k3", ""), 2, 1, 0, DrafterKind::kMtp);
  EXPECT_FALSE(without.weights().drafter.has_value());
  ASSERT_TRUE(with.weights().drafter.has_value());
  EXPECT_TRUE(with.weights().unused.empty() && with.weights().skipped.empty());
  const DrafterWeights& block = *with.weights().drafter;
  EXPECT_EQ(block.e_proj.format, WeightFormat::kFp8Block);
  EXPECT_EQ(block.layers[0].moe.routed[255].w1.bits, 3);
  EXPECT_EQ(block.enorm.numel(), 4096);
  EXPECT_EQ(bf16_to_f32(block.hnorm.as<uint16_t>()[4095]), 1.f);
  EXPECT_NE(block.layers[0].moe.bias.as<float>()[0], 0.f);
  EXPECT_EQ(block.layers[0].hc_attn.base.as<float>()[8], 4.f) << "the first of the diagonal";
  for (size_t l = 0; l < 2; ++l) {
    const ConstTensorView &a = without.weights().layers[l].moe.tid2eid,
                          &b = with.weights().layers[l].moe.tid2eid;
    EXPECT_TRUE(std::equal(a.as<int64_t>(), a.as<int64_t>() + a.numel(), b.as<int64_t>())) << l;
  }
}

// DSpark sees both layers of a model of two.
TEST(SyntheticModel, HasTheStagesThatAreWanted) {
  const Model model =
      synthetic_model("flash", recipe_of_flags("k3", ""), 2, 1, 0, DrafterKind::kDspark);
  ASSERT_TRUE(model.weights().drafter.has_value());
  EXPECT_TRUE(model.weights().unused.empty() && model.weights().skipped.empty());
  const DrafterWeights& drafter = *model.weights().drafter;
  ASSERT_EQ(drafter.layers.size(), 3u);
  EXPECT_EQ(drafter.layers[2].moe.routed[255].w1.bits, 3);
  EXPECT_EQ(model.config().dspark.taps, (std::vector<int64_t>{0, 1}));
  EXPECT_EQ(drafter.main_proj.k, 2 * 4096);
  EXPECT_EQ(drafter.markov_w2.n, 129280);
  EXPECT_EQ(drafter.confidence.dim(1), 4096 + 256);
}

TEST(SyntheticModel, HasExpertsAsTheyAreReleased) {
  for (const WeightFormat fp4 : {WeightFormat::kMxfp4, WeightFormat::kNvfp4}) {
    EXPECT_EQ(released_format(name(fp4)), fp4);
    const Model model = synthetic_model("flash", {{}, fp4}, 3, 1);
    EXPECT_TRUE(model.weights().unused.empty());
    const WeightView& w = model.weights().layers[2].moe.routed[255].w2;
    EXPECT_EQ(w.format, fp4);
    EXPECT_EQ(w.scale2, fp4 == WeightFormat::kNvfp4 ? kNvfp4Scale2 : 1.f);
  }
  EXPECT_FALSE(released_format("k4"));
  EXPECT_FALSE(released_format("bf16"));
}

// Kernels differ by codebook: a benchmark of a format measures what `dsv4 quantize` writes for it.
TEST(SyntheticModel, HasTheCodebooksThatTheRecipeNames) {
  const auto book_of = [](const char* experts, const char* dense, bool of_dense) {
    const Model model = synthetic_model("flash", recipe_of_flags(experts, dense), 1, 1);
    const LayerWeights& layer = model.weights().layers[0];
    const ConstTensorView& book =
        of_dense ? layer.attn.wq_b.codebook : layer.moe.routed[7].w2.codebook;
    return codebook_name({book.as<float>(), static_cast<size_t>(book.numel())});
  };
  EXPECT_EQ(book_of("k3", "", false), "e4m3");
  EXPECT_EQ(book_of("k3-bnf", "", false), "bnf");
  EXPECT_EQ(book_of("k3-e4m3", "", false), "e4m3");
  EXPECT_EQ(book_of("k2-nf", "", false), "nf");
  EXPECT_EQ(book_of("k4", "", false), "e2m1") << "the lossless import of MXFP4";
  EXPECT_EQ(book_of("k3", "k5", true), "e4m3");
  EXPECT_EQ(book_of("k5", "", false), "bnf");
  EXPECT_EQ(book_of("k3", "k5-e4m3", true), "e4m3");
}

// The quantizer's command in README.md: its codebook is the one of the fastest kernels.
TEST(SyntheticModel, TheReadmesCommandHasTheFastCodebook) {
  const std::string experts =
      test::word_after(read_text_file("README.md"), "quantize demo -o demo-k3 --experts ");
  ASSERT_FALSE(experts.empty());
  const Model model = synthetic_model("flash", recipe_of_flags(experts, ""), 1, 1);
  const WeightView& w2 = model.weights().layers[0].moe.routed[7].w2;
  EXPECT_TRUE(is_e4m3_codebook({w2.codebook.as<float>(), static_cast<size_t>(w2.codebook.numel())}))
      << experts;
}

TEST(SyntheticModel, HashLayersRouteToDistinctExperts) {
  const Model model = synthetic_model("flash", {}, 1, 1);
  const ConstTensorView& table = model.weights().layers[0].moe.tid2eid;
  for (const int64_t token : {0, 1, 77777, 129279}) {
    const int64_t* row = table.row<int64_t>(token);
    EXPECT_EQ(std::set<int64_t>(row, row + 6).size(), 6u);
  }
}

// With 256 experts of shares 1/rank, the first has 16 % and is among the six of most tokens.
TEST(SyntheticModel, ExpertsMayBeUnequallyPopular) {
  const auto largest_share = [](double skew) {
    const Model model = synthetic_model("flash", {}, 4, 1, skew);
    const ConstTensorView& table = model.weights().layers[0].moe.tid2eid;
    std::map<int64_t, int> count;
    for (int64_t token = 0; token < 1000; ++token)
      for (int64_t j = 0; j < 6; ++j) ++count[table.row<int64_t>(token)[j]];
    int largest = 0;
    for (const auto& [expert, n] : count) largest = std::max(largest, n);
    const ConstTensorView& bias = model.weights().layers[3].moe.bias;
    const auto* b = bias.as<float>();
    const float range = *std::max_element(b, b + 256) - *std::min_element(b, b + 256);
    EXPECT_NEAR(range, skew > 0 ? 0.2 * std::log(256) : 0.11, 0.15);
    return largest;
  };
  EXPECT_LT(largest_share(0), 60);
  EXPECT_GT(largest_share(1), 500);
}

TEST(SyntheticModel, RefusesMoreLayersThanThereAre) {
  EXPECT_THROW(synthetic_model("flash", {}, 44, 1), Error);
  EXPECT_THROW(synthetic_model("large", {}, 0, 1), Error);
}

}  // namespace
}  // namespace dsv4
