#include "dsv4/convert/recipe.h"

#include <gtest/gtest.h>

#include "dsv4/base/error.h"
#include "tests/harness/errors.h"

namespace dsv4 {
namespace {

using test::error_of;
using test::says;

std::string target_of(const Recipe& recipe, std::string_view prefix) {
  const Rule* rule = recipe.rule_for(weight_name(prefix));
  return rule == nullptr ? "none" : to_string(rule->target);
}

std::string bad(std::string_view text) {
  return error_of(ErrorCode::kBadInput, [&] { parse_recipe(text, "r.txt"); });
}

TEST(WeightNames, PartsOfTheModel) {
  const auto check = [](std::string_view prefix, WeightPart part, int layer, bool drafter,
                        std::string_view leaf) {
    const WeightName weight = weight_name(prefix);
    EXPECT_EQ(std::string(name(weight.part)), name(part)) << prefix;
    EXPECT_EQ(weight.layer, layer) << prefix;
    EXPECT_EQ(weight.drafter, drafter) << prefix;
    EXPECT_EQ(weight.leaf, leaf) << prefix;
  };
  check("layers.3.ffn.experts.17.w1", WeightPart::kExperts, 3, false, "w1");
  check("mtp.0.ffn.experts.255.w2", WeightPart::kExperts, -1, true, "w2");
  check("layers.42.ffn.shared_experts.w3", WeightPart::kSharedExperts, 42, false, "w3");
  check("layers.0.attn.wo_a", WeightPart::kAttention, 0, false, "wo_a");
  check("layers.2.attn.indexer.wq_b", WeightPart::kIndexer, 2, false, "wq_b");
  check("layers.2.attn.indexer.weights_proj", WeightPart::kIndexer, 2, false, "weights_proj");
  check("layers.2.attn.indexer.compressor.wkv", WeightPart::kCompressor, 2, false, "wkv");
  check("layers.2.attn.compressor.wgate", WeightPart::kCompressor, 2, false, "wgate");
  check("layers.2.ffn.gate", WeightPart::kRouter, 2, false, "");
  check("mtp.0.e_proj", WeightPart::kDrafter, -1, true, "e_proj");
  check("mtp.0.attn.wkv", WeightPart::kAttention, -1, true, "wkv");
  check("head", WeightPart::kHead, -1, false, "");
  check("embed", WeightPart::kEmbed, -1, false, "");
  check("norm", WeightPart::kOther, -1, false, "");
  check("layers.1.attn_norm", WeightPart::kOther, 1, false, "");
  check("layers.1.attn.q_norm", WeightPart::kOther, 1, false, "");
  check("layers.1.e_proj", WeightPart::kOther, 1, false, "");
  check("layers.x.attn.wkv", WeightPart::kOther, -1, false, "");
  check("layers.1.ffn.experts.w1", WeightPart::kOther, 1, false, "");
  check("mtp.0.head", WeightPart::kOther, -1, true, "");
}

TEST(Recipe, LastMatchWins) {
  const Recipe recipe = parse_recipe(
      "# a comment\n"
      "experts k3\r\n"
      "experts.down\tk4-nf   # w2\n"
      "experts.w1 0,5-7 k2\n"
      "\n"
      "experts mtp keep\n"
      "head k5",
      "r.txt");
  EXPECT_EQ(recipe.rules.size(), 5u);
  EXPECT_EQ(target_of(recipe, "layers.1.ffn.experts.0.w1"), "k3");
  EXPECT_EQ(target_of(recipe, "layers.1.ffn.experts.9.w2"), "k4-nf");
  EXPECT_EQ(target_of(recipe, "layers.0.ffn.experts.0.w1"), "k2");
  EXPECT_EQ(target_of(recipe, "layers.5.ffn.experts.0.w1"), "k2");
  EXPECT_EQ(target_of(recipe, "layers.7.ffn.experts.0.w1"), "k2");
  EXPECT_EQ(target_of(recipe, "layers.8.ffn.experts.0.w1"), "k3");
  EXPECT_EQ(target_of(recipe, "layers.7.ffn.experts.0.w3"), "k3");
  EXPECT_EQ(target_of(recipe, "mtp.0.ffn.experts.0.w2"), "keep");
  EXPECT_EQ(target_of(recipe, "head"), "k5");
  EXPECT_EQ(target_of(recipe, "embed"), "none");
  EXPECT_EQ(target_of(recipe, "norm"), "none");
}

TEST(Recipe, RulesWithoutLayersIncludeTheDrafter) {
  const Recipe recipe = parse_recipe("experts k3\nattn 0-99 k4\nattn.wkv 2,mtp k5", "r.txt");
  EXPECT_EQ(target_of(recipe, "mtp.0.ffn.experts.0.w1"), "k3");
  EXPECT_EQ(target_of(recipe, "mtp.0.attn.wq_a"), "none");
  EXPECT_EQ(target_of(recipe, "mtp.0.attn.wkv"), "k5");
}

TEST(Recipe, DenseMatchesOfficialFp8Weights) {
  const Recipe recipe = parse_recipe("dense k4", "r.txt");
  for (const char* dense :
       {"layers.0.attn.wq_a", "layers.0.attn.wq_b", "layers.0.attn.wkv", "layers.0.attn.wo_a",
        "layers.0.attn.wo_b", "layers.0.attn.indexer.wq_b", "layers.0.ffn.shared_experts.w1",
        "mtp.0.e_proj", "mtp.0.h_proj", "mtp.0.main_proj", "mtp.0.attn.wq_a"})
    EXPECT_EQ(target_of(recipe, dense), "k4") << dense;
  for (const char* other :
       {"layers.0.attn.indexer.weights_proj", "layers.0.attn.compressor.wkv", "layers.0.ffn.gate",
        "layers.0.attn.indexer.compressor.wkv", "layers.0.ffn.experts.0.w1", "head", "embed"})
    EXPECT_EQ(target_of(recipe, other), "none") << other;
}

TEST(Recipe, FormatsRoundTrip) {
  for (const char* format : {"keep", "bf16", "fp8", "mxfp4", "nvfp4", "k2", "k3-nf", "k4-bnf",
                             "k4-e2m1", "k3-e4m3", "k5-e4m3", "k5-@a/b"}) {
    const Recipe recipe = parse_recipe(fmt::format("experts {}", format), "r.txt");
    EXPECT_EQ(target_of(recipe, "layers.0.ffn.experts.0.w1"), format);
  }
}

TEST(Recipe, ErrorsNameLineWordAndAllowedValues) {
  EXPECT_EQ(bad("\nexperts k6"),
            "r.txt:2: \"k6\": want keep, bf16, fp8, mxfp4, nvfp4, or k2 to k5 with or without a "
            "codebook -nf, "
            "-bnf, -e2m1 (k4), -e4m3 or -@FILE");
  EXPECT_EQ(bad("expert k3"),
            "r.txt:1: \"expert\": want dense, experts, shared_experts, attn, indexer, compressor, "
            "gate, mtp, head, embed");
  EXPECT_TRUE(says(bad("experts.w4 k3"), "\"experts.w4\": want experts with or without .{w1, w2"));
  EXPECT_TRUE(says(bad("head.x k3"), "\"head.x\": want head"));
  EXPECT_TRUE(says(bad("dense.x k3"), "\"dense.x\""));
  EXPECT_TRUE(says(bad("other k3"), "\"other\""));
  EXPECT_TRUE(says(bad("experts"), "r.txt:1: 1 words: want PATTERN [LAYERS] FORMAT"));
  EXPECT_TRUE(says(bad("experts 1 k3 now"), "4 words"));
  for (const char* layers : {"x", "1-", "-1", "1,,2", "1,", "10000", "1-2-3", "99999999999", "+1"})
    EXPECT_TRUE(says(bad(fmt::format("experts {} k3", layers)),
                     fmt::format("\"{}\": want layers of 0 to 9999", layers)));
  EXPECT_TRUE(says(bad("experts 3-2 k3"), "want ascending ranges"));
  EXPECT_TRUE(says(bad("head 3 k3"), "head is not part of a layer"));
  for (const char* format :
       {"k", "k1", "k33", "k4-", "k3-e2m1", "k5-e4m4", "k4-@", "k4-xf", "K4", "q4", "fp4"})
    EXPECT_TRUE(
        says(bad(fmt::format("experts {}", format)), fmt::format("\"{}\": want keep", format)));
  EXPECT_TRUE(says(bad("embed k4"), "\"k4\": want keep or bf16 for embed"));
}

TEST(Recipe, LimitsItsMemory) {
  std::string many;
  for (int i = 0; i < 4097; ++i) many += "head k3\n";
  EXPECT_TRUE(says(bad(many), "r.txt:4097: more than 4096 rules"));
  EXPECT_TRUE(says(bad(std::string((size_t{1} << 20) + 1, '#')), "exceeds the limit"));
  std::string ranges = "experts 0";
  for (int i = 0; i < 256; ++i) ranges += ",0";
  EXPECT_TRUE(says(bad(ranges + " k3"), "at most 256 ranges"));
}

TEST(Recipe, FlagsComeFirst) {
  Recipe recipe = recipe_of_flags("k3", "k4");
  recipe.append(parse_recipe("experts 1 k5", "r.txt"));
  EXPECT_EQ(target_of(recipe, "layers.0.ffn.experts.0.w1"), "k3");
  EXPECT_EQ(target_of(recipe, "layers.1.ffn.experts.0.w1"), "k5");
  EXPECT_EQ(target_of(recipe, "layers.1.attn.wq_a"), "k4");
  EXPECT_EQ(recipe.text, "experts k3\ndense k4\nexperts 1 k5\n");
  EXPECT_TRUE(recipe_of_flags("", "").rules.empty());
  for (const char* flag : {"k9", "1 k3", " ", "k3\nhead k2", "k3#"})
    EXPECT_TRUE(
        says(error_of(ErrorCode::kBadInput, [&] { recipe_of_flags(flag, ""); }), "--experts: "));
}

TEST(Recipe, CodebookFiles) {
  const Codebook book = parse_codebook("# mine\n-1 -0.5,\t.25\n1e0 # end", 2, "b.txt");
  EXPECT_EQ(book.bits, 2);
  EXPECT_EQ(book.value[2], 0.25f);
  const auto wrong = [](std::string_view text) {
    return error_of(ErrorCode::kBadInput, [&] { parse_codebook(text, 2, "b.txt"); });
  };
  EXPECT_EQ(wrong("1 2 3"), "b.txt: 3 values: a 2-bit codebook has 4");
  EXPECT_EQ(wrong("1 2\n3 4 5"), "b.txt:2: more than the 4 values of a 2-bit codebook");
  EXPECT_EQ(wrong("1 2x 3 4"), "b.txt:1: \"2x\": want a number");
  EXPECT_TRUE(says(wrong("1 3 2 4"), "b.txt: codebook value 2 is 2"));
  EXPECT_TRUE(says(wrong("1 2 3 nan"), "b.txt: codebook value 3 is nan"));
  EXPECT_TRUE(says(wrong("0 0 0 0"), "zero"));
  EXPECT_TRUE(says(wrong("0 1e-44 2e-44 3e-44"), "b.txt: the largest magnitude is "));
}

}  // namespace
}  // namespace dsv4
