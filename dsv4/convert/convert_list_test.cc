#include "dsv4/convert/convert_list.h"

#include <gtest/gtest.h>

#include "dsv4/base/error.h"

namespace dsv4 {
namespace {

TensorMeta meta(DType dtype, std::initializer_list<int64_t> shape) {
  return TensorMeta::contiguous(dtype, shape);
}

StoredTensors every_format() {
  return {{"embed.weight", meta(DType::kBF16, {10, 64})},
          {"norm.weight", meta(DType::kBF16, {64})},
          {"hc_head_scale", meta(DType::kF32, {1})},
          {"layers.0.attn.wq_a.weight", meta(DType::kE4M3, {130, 64})},
          {"layers.0.attn.wq_a.scale", meta(DType::kE8M0, {2, 1})},
          {"layers.0.attn.wkv.weight", meta(DType::kF32, {6, 40})},
          {"layers.0.attn.wo_a.weight", meta(DType::kF16, {192, 64})},
          {"layers.2.ffn.experts.0.w1.weight", meta(DType::kI8, {6, 32})},
          {"layers.2.ffn.experts.0.w1.scale", meta(DType::kE8M0, {6, 2})},
          {"layers.10.ffn.experts.0.w1.weight", meta(DType::kU8, {6, 32})},
          {"layers.10.ffn.experts.0.w1.weight_scale", meta(DType::kE4M3, {6, 4})},
          {"layers.10.ffn.experts.0.w1.weight_scale_2", meta(DType::kF32, {})},
          {"layers.10.ffn.experts.0.w1.input_scale", meta(DType::kF32, {})},
          {"layers.10.ffn.experts.0.w2.weight", meta(DType::kI32, {6, 2, 3})},
          {"layers.10.ffn.experts.0.w2.scale", meta(DType::kU8, {6, 2})},
          {"layers.10.ffn.experts.0.w2.codebook", meta(DType::kF32, {8})},
          {"layers.10.ffn.experts.0.w3.weight", meta(DType::kI8, {6, 32})}};
}

const OutputItem& item(const ConvertList& list, const std::string& name) {
  for (const OutputItem& candidate : list.items) {
    if (candidate.name == name) return candidate;
  }
  ADD_FAILURE() << "no " << name;
  return list.items.front();
}

// "weight [6, 2, 3] I32, scale [6, 2] U8"
std::string tensors(const OutputItem& item) {
  std::string text;
  for (const OutputTensor& tensor : item.tensors)
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", tensor.name.substr(item.name.size()),
                        to_string(tensor.meta));
  return text;
}

ConvertList convert(const std::string& recipe, int64_t o_groups = 1) {
  return convert_list(every_format(), parse_recipe(recipe, "r"), o_groups);
}

TEST(ConvertList, KeepsEverythingWithoutRules) {
  const ConvertList list = convert("");
  int64_t bytes = 0;
  size_t num_tensors = 0;
  const StoredTensors stored = every_format();
  for (const auto& [name, tensor] : stored) bytes += tensor.bytes();
  for (const OutputItem& entry : list.items) {
    EXPECT_FALSE(entry.converted()) << entry.name;
    EXPECT_EQ(entry.kept, "") << entry.name;
    for (const OutputTensor& tensor : entry.tensors) {
      EXPECT_EQ(to_string(tensor.meta), to_string(stored.at(tensor.name)));
      ++num_tensors;
    }
  }
  EXPECT_EQ(num_tensors, stored.size());
  EXPECT_EQ(list.bytes, bytes);
  EXPECT_EQ(list.source_bytes, bytes);
}

TEST(ConvertList, NaturalOrder) {
  std::vector<std::string> names;
  for (const OutputItem& entry : convert("").items) names.push_back(entry.name);
  const std::vector<std::string> want = {"embed",
                                         "hc_head_scale",
                                         "layers.0.attn.wkv",
                                         "layers.0.attn.wo_a",
                                         "layers.0.attn.wq_a",
                                         "layers.2.ffn.experts.0.w1",
                                         "layers.10.ffn.experts.0.w1",
                                         "layers.10.ffn.experts.0.w2",
                                         "layers.10.ffn.experts.0.w3",
                                         "norm.weight"};
  EXPECT_EQ(names, want);
}

TEST(ConvertList, EveryTarget) {
  EXPECT_EQ(tensors(item(convert("attn k3"), "layers.0.attn.wq_a")),
            ".weight [130, 2, 3] I32, .scale [130, 2] U8, .codebook [8] F32, .scale_2 [] F32");
  EXPECT_EQ(tensors(item(convert("attn fp8"), "layers.0.attn.wkv")),
            ".weight [6, 40] F8_E4M3, .scale [1, 1] F8_E8M0");
  EXPECT_EQ(tensors(item(convert("attn bf16"), "layers.0.attn.wq_a")), ".weight [130, 64] BF16");
  EXPECT_EQ(tensors(item(convert("experts k5"), "layers.10.ffn.experts.0.w1")),
            ".weight [6, 2, 5] I32, .scale [6, 2] U8, .codebook [32] F32, .scale_2 [] F32");
  const ConvertList list = convert("experts k2");
  // NVFP4 and MXFP4 weights of 6 x 64: 6*2*(2*4 + 1) bytes, a codebook of 4 and scale_2.
  EXPECT_EQ(item(list, "layers.10.ffn.experts.0.w1").bytes(), 108 + 16 + 4);
  EXPECT_EQ(item(list, "layers.2.ffn.experts.0.w1").bytes(), 108 + 16 + 4);
  EXPECT_EQ(item(list, "layers.10.ffn.experts.0.w1").source_bytes, 6 * 32 + 6 * 4 + 8);
}

TEST(ConvertList, PlainFormatsGetTheCodebookOfTheFastestKernels) {
  for (const char* format : {"k2", "k3", "k4", "k5"}) {
    const ConvertList list = convert(fmt::format("experts {}\nattn {}", format, format));
    const auto book = [&](const char* name) {
      return to_string(item(list, name).target).substr(3);
    };
    const std::string experts = format[1] == '4' ? "e2m1" : format[1] == '5' ? "bnf" : "e4m3";
    EXPECT_EQ(book("layers.2.ffn.experts.0.w1"), experts) << format << " of MXFP4";
    EXPECT_EQ(book("layers.10.ffn.experts.0.w1"), experts) << format << " of NVFP4";
    EXPECT_EQ(book("layers.0.attn.wq_a"), "e4m3") << format;
  }
}

TEST(ConvertList, PlainK4IsLosslessOnMxfp4Only) {
  const ConvertList list = convert("experts k4\nattn k4");
  EXPECT_EQ(to_string(item(list, "layers.2.ffn.experts.0.w1").target), "k4-e2m1");
  EXPECT_TRUE(item(list, "layers.2.ffn.experts.0.w1").lossless_import());
  EXPECT_EQ(to_string(item(list, "layers.10.ffn.experts.0.w1").target), "k4-e2m1");
  EXPECT_FALSE(item(list, "layers.10.ffn.experts.0.w1").lossless_import());
  const ConvertList named = convert("experts k4-bnf\nattn k4-e2m1");
  EXPECT_EQ(to_string(item(named, "layers.2.ffn.experts.0.w1").target), "k4-bnf");
  EXPECT_FALSE(item(named, "layers.2.ffn.experts.0.w1").lossless_import());
  EXPECT_FALSE(item(named, "layers.0.attn.wq_a").lossless_import());
}

TEST(ConvertList, KeptWeightsHaveAReason) {
  const ConvertList list = convert("attn k3\nexperts k3");
  EXPECT_EQ(item(list, "layers.0.attn.wkv").kept, "k=40 is not a multiple of 32");
  EXPECT_EQ(tensors(item(list, "layers.0.attn.wkv")), ".weight [6, 40] F32");
  EXPECT_EQ(item(list, "layers.10.ffn.experts.0.w2").kept, "is already k-bit with 3 bits");
  EXPECT_EQ(item(list, "layers.10.ffn.experts.0.w3").kept, "not in a readable format");
  EXPECT_EQ(tensors(item(list, "layers.10.ffn.experts.0.w3")), ".weight [6, 32] I8");
  EXPECT_EQ(item(list, "layers.0.attn.wq_a").kept, "");
  // A rule that requests the stored format is not an exception.
  EXPECT_EQ(item(convert("attn fp8"), "layers.0.attn.wq_a").kept, "");
  EXPECT_FALSE(item(convert("attn fp8"), "layers.0.attn.wq_a").converted());
  EXPECT_FALSE(item(convert("embed bf16"), "embed").converted());
}

TEST(ConvertList, OutputProjectionGroupsAreAMultipleOfFp8Blocks) {
  EXPECT_TRUE(item(convert("attn fp8"), "layers.0.attn.wo_a").converted());
  EXPECT_EQ(item(convert("attn fp8", 2), "layers.0.attn.wo_a").kept,
            "groups of 96 rows are not a multiple of the fp8 block size 128");
  EXPECT_TRUE(item(convert("attn k3", 2), "layers.0.attn.wo_a").converted());
}

TEST(ConvertList, ReportsUnmatchedRules) {
  const ConvertList list = convert("experts k2\nexperts k3\nhead k3\nexperts 7 k4\n");
  EXPECT_EQ(list.idle, (std::vector<std::string>{"r:1", "r:3", "r:4"}));
}

TEST(ConvertList, ImportThatDoesNotFitIsKept) {
  const ConvertList list = convert("experts k4");
  const OutputItem back = kept_item(every_format(), item(list, "layers.2.ffn.experts.0.w1"), "why");
  EXPECT_EQ(tensors(back), ".weight [6, 32] I8, .scale [6, 2] F8_E8M0");
  EXPECT_EQ(back.kept, "why");
  EXPECT_FALSE(back.converted());
}

}  // namespace
}  // namespace dsv4
