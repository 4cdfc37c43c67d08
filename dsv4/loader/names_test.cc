#include "dsv4/loader/names.h"

#include <gtest/gtest.h>

#include <numeric>

#include "dsv4/base/error.h"
#include "dsv4/loader/safetensors.h"
#include "dsv4/tensor/buffer.h"
#include "tests/harness/errors.h"

namespace dsv4 {
namespace {

using test::error_of;

struct Names {
  const char *official, *module, *hybrid;
};

// docs/spec/dsv4.md 10.2 and 10.5. module: what transformers writes with
// save_original_format=False. hybrid: what its save_pretrained writes by default.
constexpr Names kGlobal[] = {
    {"embed.weight", "model.embed_tokens.weight", "model.embed_tokens.weight"},
    {"head.weight", "lm_head.weight", "head.weight"},
    {"norm.weight", "model.norm.weight", "model.norm.weight"},
    {"hc_head_fn", "model.hc_head.hc_fn", "model.hc_head.hc_fn"},
    {"hc_head_base", "model.hc_head.hc_base", "model.hc_head.hc_base"},
    {"hc_head_scale", "model.hc_head.hc_scale", "model.hc_head.hc_scale"},
};

// After "layers.N." or "model.layers.N.".
constexpr Names kBlock[] = {
    {"attn_norm.weight", "input_layernorm.weight", "attn_norm.weight"},
    {"ffn_norm.weight", "post_attention_layernorm.weight", "ffn_norm.weight"},
    {"hc_attn_fn", "attn_hc.fn", "hc_attn_fn"},
    {"hc_attn_base", "attn_hc.base", "hc_attn_base"},
    {"hc_attn_scale", "attn_hc.scale", "hc_attn_scale"},
    {"hc_ffn_fn", "ffn_hc.fn", "hc_ffn_fn"},
    {"hc_ffn_base", "ffn_hc.base", "hc_ffn_base"},
    {"hc_ffn_scale", "ffn_hc.scale", "hc_ffn_scale"},
    {"attn.attn_sink", "self_attn.sinks", "attn.attn_sink"},
    {"attn.wq_a.weight", "self_attn.q_a_proj.weight", "attn.wq_a.weight"},
    {"attn.wq_a.scale", "self_attn.q_a_proj.weight_scale_inv", "attn.wq_a.weight_scale_inv"},
    {"attn.q_norm.weight", "self_attn.q_a_norm.weight", "attn.q_norm.weight"},
    {"attn.wq_b.weight", "self_attn.q_b_proj.weight", "attn.wq_b.weight"},
    {"attn.wkv.weight", "self_attn.kv_proj.weight", "attn.wkv.weight"},
    {"attn.kv_norm.weight", "self_attn.kv_norm.weight", "attn.norm.weight"},
    {"attn.kv_norm.weight", "self_attn.norm.weight", "attn.kv_norm.weight"},
    {"attn.wo_a.weight", "self_attn.o_a_proj.weight", "attn.wo_a.weight"},
    {"attn.wo_b.weight", "self_attn.o_b_proj.weight", "attn.wo_b.weight"},
    {"attn.compressor.wkv.weight", "self_attn.compressor.kv_proj.weight",
     "attn.compressor.wkv.weight"},
    {"attn.compressor.wgate.weight", "self_attn.compressor.gate_proj.weight",
     "attn.compressor.wgate.weight"},
    {"attn.compressor.ape", "self_attn.compressor.position_bias", "attn.compressor.ape"},
    {"attn.compressor.norm.weight", "self_attn.compressor.kv_norm.weight",
     "attn.compressor.norm.weight"},
    {"attn.compressor.norm.weight", "self_attn.compressor.norm.weight",
     "attn.compressor.norm.weight"},
    {"attn.indexer.wq_b.weight", "self_attn.compressor.indexer.q_b_proj.weight",
     "attn.indexer.wq_b.weight"},
    {"attn.indexer.wq_b.scale", "self_attn.compressor.indexer.q_b_proj.weight_scale_inv",
     "attn.indexer.wq_b.scale"},
    {"attn.indexer.weights_proj.weight", "self_attn.compressor.indexer.scorer.weights_proj.weight",
     "attn.indexer.weights_proj.weight"},
    {"attn.indexer.weights_proj.weight", "self_attn.compressor.indexer.weights_proj.weight",
     "attn.indexer.weights_proj.weight"},
    {"attn.indexer.compressor.wkv.weight", "self_attn.compressor.indexer.kv_proj.weight",
     "attn.indexer.compressor.wkv.weight"},
    {"attn.indexer.compressor.wgate.weight", "self_attn.compressor.indexer.gate_proj.weight",
     "attn.indexer.compressor.wgate.weight"},
    {"attn.indexer.compressor.ape", "self_attn.compressor.indexer.position_bias",
     "attn.indexer.compressor.ape"},
    {"attn.indexer.compressor.norm.weight", "self_attn.compressor.indexer.kv_norm.weight",
     "attn.indexer.compressor.norm.weight"},
    {"attn.indexer.compressor.norm.weight", "self_attn.compressor.indexer.norm.weight",
     "attn.indexer.compressor.norm.weight"},
    {"ffn.gate.weight", "mlp.gate.weight", "ffn.gate.weight"},
    {"ffn.gate.bias", "mlp.gate.e_score_correction_bias", "ffn.gate.bias"},
    {"ffn.gate.tid2eid", "mlp.gate.tid2eid", "ffn.gate.tid2eid"},
    {"ffn.shared_experts.w1.weight", "mlp.shared_experts.gate_proj.weight",
     "ffn.shared_experts.w1.weight"},
    {"ffn.shared_experts.w2.scale", "mlp.shared_experts.down_proj.weight_scale_inv",
     "ffn.shared_experts.w2.scale"},
    {"ffn.shared_experts.w3.weight", "mlp.shared_experts.up_proj.weight",
     "ffn.shared_experts.w3.weight"},
    {"ffn.experts.17.w1.weight", "mlp.experts.17.gate_proj.weight", "ffn.experts.17.w1.weight"},
    {"ffn.experts.17.w2.weight", "mlp.experts.17.down_proj.weight", "ffn.experts.17.w2.weight"},
    {"ffn.experts.17.w3.scale", "mlp.experts.17.up_proj.weight_scale_inv",
     "ffn.experts.17.w3.scale"},
};

TEST(OfficialName, HandlesEveryStyle) {
  for (const Names& names : kGlobal) {
    for (const char* stored : {names.official, names.module, names.hybrid})
      EXPECT_EQ(official_name(stored), names.official) << stored;
  }
  for (const Names& names : kBlock) {
    for (const char* block : {"layers.0.", "layers.42.", "mtp.0."}) {
      const std::string official = fmt::format("{}{}", block, names.official);
      for (const char* stored : {names.official, names.module, names.hybrid}) {
        for (const char* prefix : {"", "model."})
          EXPECT_EQ(official_name(fmt::format("{}{}{}", prefix, block, stored)), official);
      }
    }
  }
}

TEST(OfficialName, LeavesOtherNamesUnchanged) {
  for (const char* name :
       {"mtp.0.e_proj.weight", "mtp.0.h_proj.scale", "mtp.0.enorm.weight", "mtp.0.norm.weight",
        "mtp.0.hc_head_fn", "mtp.0.emb.tok_emb.weight", "mtp.0.head.weight",
        "mtp.2.markov_head.markov_w1.weight", "mtp.0.main_proj.weight", "mtp.0.main_norm.weight",
        "layers.3.ffn.experts.0.w1.weight_scale", "layers.3.ffn.experts.0.w1.weight_scale_2",
        "layers.3.ffn.experts.0.w1.input_scale", "unknown", "", ".", "..", "vision.tower.norm"}) {
    EXPECT_EQ(official_name(name), name);
  }
}

// quantize writes the names again.
TEST(OfficialName, IsANameThatAFileCanHold) {
  EXPECT_EQ(official_name("model."), "model.");
  EXPECT_EQ(official_name("model.__metadata__"), "model.__metadata__");
  const std::string longest = std::string(kMaxTensorName - 11, 'x') + ".attn.sinks";
  EXPECT_EQ(official_name(longest), longest);
  EXPECT_EQ(official_name(longest.substr(4)),
            longest.substr(4, kMaxTensorName - 15) + ".attn.attn_sink");
}

TEST(OfficialTensors, OrdinaryTensorIsUnchanged) {
  const Buffer buffer(DType::kF32, {2, 3});
  const auto tensors = official_tensors("model.layers.1.self_attn.q_a_proj.weight", buffer);
  ASSERT_EQ(tensors.size(), 1u);
  EXPECT_EQ(tensors[0].name, "layers.1.attn.wq_a.weight");
  EXPECT_EQ(tensors[0].view.data, buffer.view().data);
  EXPECT_FALSE(tensors[0].half);
}

// Element (e, row, column) of an iota tensor is its own index.
Buffer iota_buffer(int64_t experts, int64_t rows, int64_t columns) {
  Buffer buffer(DType::kI32, {experts, rows, columns});
  std::iota(buffer.as<int32_t>(), buffer.as<int32_t>() + buffer.view().numel(), 0);
  return buffer;
}

TEST(OfficialTensors, SplitsStackedPairs) {
  constexpr int64_t kExperts = 3, kInner = 2, kColumns = 5;
  const Buffer stacked = iota_buffer(kExperts, 2 * kInner, kColumns);
  for (const auto& [stored, leaf] :
       {std::pair("model.layers.7.mlp.experts.gate_up_proj", "weight"),
        std::pair("layers.7.ffn.experts.gate_up_proj.weight", "weight"),
        std::pair("model.layers.7.mlp.experts.gate_up_proj_scale_inv", "scale"),
        std::pair("model.layers.7.mlp.experts.gate_up_proj.weight_scale_inv", "scale")}) {
    const auto tensors = official_tensors(stored, stacked);
    ASSERT_EQ(tensors.size(), size_t{2 * kExperts}) << stored;
    for (int64_t i = 0; i < 2 * kExperts; ++i) {
      const OfficialTensor& part = tensors[static_cast<size_t>(i)];
      EXPECT_EQ(part.name,
                fmt::format("layers.7.ffn.experts.{}.w{}.{}", i / 2, i % 2 == 0 ? 1 : 3, leaf));
      EXPECT_EQ(to_string(part.view), "[2, 5] I32");
      EXPECT_TRUE(part.half && part.view.is_contiguous());
      for (int64_t j = 0; j < kInner * kColumns; ++j)
        EXPECT_EQ(part.view.as<int32_t>()[j], i * kInner * kColumns + j);
    }
  }
}

TEST(OfficialTensors, SplitsStackedDown) {
  const Buffer stacked = iota_buffer(2, 3, 4);
  const auto tensors = official_tensors("model.layers.0.mlp.experts.down_proj", stacked);
  ASSERT_EQ(tensors.size(), 2u);
  EXPECT_EQ(tensors[1].name, "layers.0.ffn.experts.1.w2.weight");
  EXPECT_EQ(to_string(tensors[1].view), "[3, 4] I32");
  EXPECT_EQ(tensors[1].view.as<int32_t>()[0], 12);
  EXPECT_FALSE(tensors[1].half);
  EXPECT_EQ(official_tensors("layers.0.mlp.experts.down_proj_scale_inv", stacked)[0].name,
            "layers.0.ffn.experts.0.w2.scale");
}

TEST(OfficialTensors, RejectsStackedTensorsOfOtherShapes) {
  const auto reject = [](const char* name, std::initializer_list<int64_t> shape) {
    // No data is read, so a claimed shape needs no data.
    static const std::byte nothing{};
    const ConstTensorView view(TensorMeta::contiguous(DType::kU8, shape), &nothing);
    return error_of(ErrorCode::kBadInput, [&] { official_tensors(name, view); });
  };
  EXPECT_EQ(reject("a.mlp.experts.gate_up_proj", {2, 3, 4}),
            "a.mlp.experts.gate_up_proj: want [experts, 2 x rows, columns], got [2, 3, 4] U8");
  EXPECT_EQ(reject("a.mlp.experts.down_proj", {2, 3}),
            "a.mlp.experts.down_proj: want [experts, rows, columns], got [2, 3] U8");
  reject("a.mlp.experts.down_proj", {int64_t{1} << 40, 0, 4});  // a shape without data
  const std::string longest = std::string(kMaxTensorName - 22, 'x') + ".mlp.experts.down_proj";
  EXPECT_TRUE(
      test::says(reject(longest.c_str(), {2, 3, 4}), "too long for the names of its experts"));
}

}  // namespace
}  // namespace dsv4
