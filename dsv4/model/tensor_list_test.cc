#include "dsv4/model/tensor_list.h"

#include <gtest/gtest.h>

#include <map>
#include <utility>

#include "dsv4/base/error.h"
#include "dsv4/base/mapped_file.h"
#include "dsv4/model/model.h"
#include "dsv4/model/released.h"
#include "dsv4/model/weights.h"
#include "tests/harness/errors.h"
#include "tests/harness/tiny_model.h"

namespace dsv4 {
namespace {

std::map<std::string, TensorMeta> by_name(const std::vector<NamedTensor>& list) {
  std::map<std::string, TensorMeta> map;
  for (const NamedTensor& tensor : list) {
    EXPECT_TRUE(map.emplace(tensor.name, tensor.meta).second) << tensor.name << " occurs twice";
  }
  return map;
}

// docs/spec/dsv4.md 10.1: the totals of the published indices.
TEST(TensorList, TotalsOfTheReleases) {
  struct {
    const char* release;
    size_t tensors;
    int64_t bytes;
  } const releases[] = {{"flash", 69187, 159609485896}, {"pro", 145116, 864704792696}};
  for (const auto& want : releases) {
    const auto list = official_tensor_list(released_config(want.release), true);
    EXPECT_EQ(by_name(list).size(), want.tensors);
    EXPECT_EQ(total_bytes(list), want.bytes);
  }
}

// NVFP4 has twice the scales, and a number a matrix.
TEST(TensorList, ExpertsInNvfp4) {
  const ModelConfig flash = released_config("flash");
  const auto mxfp4 = by_name(official_tensor_list(flash, false));
  const auto nvfp4 = by_name(official_tensor_list(flash, false, WeightFormat::kNvfp4));
  const std::string w1 = "layers.0.ffn.experts.3.w1";
  EXPECT_EQ(to_string(nvfp4.at(w1 + ".weight_scale")), "[2048, 256] F8_E4M3");
  EXPECT_TRUE(nvfp4.contains(w1 + ".weight_scale_2"));
  EXPECT_FALSE(nvfp4.contains(w1 + ".scale"));
  EXPECT_EQ(nvfp4.at(w1 + ".weight").bytes(), mxfp4.at(w1 + ".weight").bytes());
  EXPECT_EQ(nvfp4.size() - mxfp4.size(), 43u * 256 * 3);
}

TEST(TensorList, MtpAddsOnlyTheDrafter) {
  const ModelConfig flash = released_config("flash");
  auto with = by_name(official_tensor_list(flash, true));
  for (const NamedTensor& tensor : official_tensor_list(flash, false))
    EXPECT_EQ(with.erase(tensor.name), 1u) << tensor.name;
  EXPECT_EQ(with.size(), 1575u);
  for (const auto& [name, meta] : with) EXPECT_EQ(name.rfind("mtp.0.", 0), 0u) << name;
}

// Rows of the table in docs/spec/dsv4.md 10.2.
TEST(TensorList, ShapesOfTheReleases) {
  struct {
    const char *release, *name, *meta;
  } const rows[] = {
      {"flash", "layers.2.attn.compressor.ape", "[4, 1024] F32"},
      {"flash", "layers.3.attn.compressor.wgate.weight", "[512, 4096] BF16"},
      {"flash", "layers.2.ffn.gate.tid2eid", "[129280, 6] I64"},
      {"flash", "layers.42.attn.indexer.compressor.ape", "[4, 256] F32"},
      {"flash", "mtp.0.ffn.gate.bias", "[256] F32"},
      {"pro", "layers.0.attn.compressor.ape", "[128, 512] F32"},
      {"pro", "layers.60.attn.indexer.wq_b.scale", "[64, 12] F8_E8M0"},
      {"pro", "layers.0.attn.wo_a.weight", "[16384, 4096] F8_E4M3"},
      {"pro", "layers.7.ffn.experts.383.w2.scale", "[7168, 96] F8_E8M0"},
      {"pro", "layers.7.ffn.experts.383.w1.weight", "[3072, 3584] I8"},
      {"pro", "mtp.0.h_proj.scale", "[56, 56] F8_E8M0"},
  };
  for (const auto& row : rows) {
    const auto list = by_name(official_tensor_list(released_config(row.release), true));
    ASSERT_EQ(list.count(row.name), 1u) << row.name;
    EXPECT_EQ(to_string(list.at(row.name)), row.meta) << row.name;
  }
}

TEST(Released, Configs) {
  const ModelConfig flash = released_config("flash"), pro = released_config("pro");
  EXPECT_TRUE(flash.unknown.empty());
  const auto count = [](const ModelConfig& c, int ratio) {
    return std::count(c.ratios.begin(), c.ratios.end(), ratio);
  };
  EXPECT_EQ(count(flash, 0), 2);
  EXPECT_EQ(count(flash, 4), 21);
  EXPECT_EQ(count(flash, 128), 20);
  EXPECT_EQ(count(pro, 0), 0);
  EXPECT_EQ(count(pro, 4), 30);
  EXPECT_EQ(count(pro, 128), 31);
  EXPECT_TRUE(test::says(test::error_of(ErrorCode::kBadInput, [] { released_config("mini"); }),
                         "want flash or pro"));
}

// load_weights() reads these tensors in these shapes, and no others.
TEST(TensorList, MatchesTheLoader) {
  const ModelConfig config = test::tiny_config();
  const test::TempFolder folder;
  test::write_zero_model(folder, official_tensor_list(config, true));
  const Checkpoint checkpoint = Checkpoint::open(folder.path());
  const ModelWeights weights = load_weights(checkpoint, config);
  EXPECT_TRUE(weights.unused.empty()) << weights.unused.front();
  const size_t drafter =
      official_tensor_list(config, true).size() - official_tensor_list(config, false).size();
  EXPECT_EQ(weights.skipped.size(), drafter);
  EXPECT_EQ(weights.layers[1].moe.routed[2].w1.format, WeightFormat::kMxfp4);
  EXPECT_EQ(weights.layers[1].attn.wq_a.format, WeightFormat::kFp8Block);
  EXPECT_FALSE(weights.drafter.has_value());

  const Checkpoint again = Checkpoint::open(folder.path());
  const ModelWeights all = load_weights(again, config, {}, DrafterKind::kMtp);
  EXPECT_TRUE(all.skipped.empty()) << all.skipped.front();
  ASSERT_TRUE(all.drafter.has_value());
  EXPECT_EQ(all.drafter->h_proj.format, WeightFormat::kFp8Block);
  EXPECT_EQ(all.drafter->layers[0].moe.routed[2].w2.format, WeightFormat::kMxfp4);
  EXPECT_EQ(all.drafter->layers[0].moe.bias.dim(0), 3);
  EXPECT_TRUE(all.drafter->layers[0].moe.tid2eid.empty()) << "learned routing";
}

// The names of modules under mtp.0, and the block as one layer more.
TEST(TensorList, TheDrafterHasOtherSpellings) {
  struct Spelling {
    const char *from, *to;
  };
  const std::vector<Spelling> modules = {{"mtp.0.", "model.mtp.0."},
                                         {".attn.", ".self_attn."},
                                         {".wq_a.", ".q_a_proj."},
                                         {".wkv.", ".kv_proj."},
                                         {".attn_norm.", ".input_layernorm."},
                                         {".ffn.", ".mlp."},
                                         {".shared_experts.w1.", ".shared_experts.gate_proj."}};
  std::vector<Spelling> layer = modules;
  layer[0].to = "model.layers.4.";
  layer.push_back({".4.norm.", ".4.shared_head.norm."});
  const ModelConfig config = test::tiny_config();
  for (const std::vector<Spelling>& spellings : {modules, layer}) {
    std::vector<NamedTensor> list = official_tensor_list(config, true);
    for (NamedTensor& tensor : list) {
      if (!tensor.name.starts_with("mtp.0.")) continue;
      for (const Spelling& one : spellings) {
        const size_t at = tensor.name.find(one.from);
        if (at != std::string::npos) tensor.name.replace(at, std::string(one.from).size(), one.to);
      }
    }
    const test::TempFolder folder;
    test::write_zero_model(folder, list);
    const Model model = Model::load(folder.path(), DrafterKind::kMtp);
    EXPECT_TRUE(model.weights().unused.empty()) << model.weights().unused.front();
    EXPECT_TRUE(model.weights().skipped.empty()) << model.weights().skipped.front();
    EXPECT_FALSE(model.weights().drafter->norm.empty());
    EXPECT_FALSE(Model::load(folder.path()).weights().skipped.empty());
  }
}

TEST(TensorList, RefusesDraftersThatItDoesNotRun) {
  const auto why = [](const std::string& changes, bool with_block,
                      DrafterKind kind = DrafterKind::kMtp) {
    auto json = nlohmann::json::parse(test::tiny_config_json());
    json.update(nlohmann::json::parse(changes));
    const ModelConfig config = parse_config(json.dump(), "config");
    std::map<std::string, TensorMeta> tensors;
    for (const NamedTensor& tensor : official_tensor_list(test::tiny_config(), with_block))
      tensors.emplace(tensor.name, tensor.meta);
    return no_drafter(Checkpoint::shapes("a folder", tensors), config, kind);
  };
  EXPECT_EQ(why("{}", true), "");
  EXPECT_EQ(why("{}", false),
            "a folder has no MTP block (num_nextn_predict_layers is 1, mtp.0.e_proj.weight is "
            "missing)");
  EXPECT_EQ(why(R"({"num_nextn_predict_layers": 0})", true),
            "a folder has no MTP block (num_nextn_predict_layers is 0, mtp.0.e_proj.weight is "
            "there)");
  EXPECT_TRUE(test::says(why(R"({"num_nextn_predict_layers": 3})", true), "3 MTP blocks"));
  const std::string dspark = test::tiny_dspark_json();
  EXPECT_EQ(why(dspark, true), "a folder has a DSpark drafter and no MTP block");
  EXPECT_EQ(why("{}", true, DrafterKind::kDspark),
            "a folder has no DSpark drafter (config.json has no dspark_block_size)");
  EXPECT_EQ(why(dspark, true, DrafterKind::kDspark),
            "a folder has no DSpark drafter (num_nextn_predict_layers is 3, "
            "mtp.0.main_proj.weight is missing)");
}

// The tensors of the later releases (docs/spec/dsv4.md 10.2), as the loader reads them, under the
// official names, those of modules, and as further layers.
TEST(TensorList, DsparkMatchesTheLoader) {
  const ModelConfig config = test::tiny_dspark_config();
  const auto list = by_name(official_tensor_list(config, true));
  EXPECT_EQ(to_string(list.at("mtp.0.main_proj.weight")), "[128, 384] F8_E4M3");
  EXPECT_EQ(to_string(list.at("mtp.0.main_norm.weight")), "[128] BF16");
  EXPECT_EQ(to_string(list.at("mtp.2.norm.weight")), "[128] BF16");
  EXPECT_EQ(to_string(list.at("mtp.2.hc_head_fn")), "[4, 512] F32");
  EXPECT_EQ(to_string(list.at("mtp.2.markov_head.markov_w1.weight")), "[40, 24] BF16");
  EXPECT_EQ(to_string(list.at("mtp.2.markov_head.markov_w2.weight")), "[40, 24] BF16");
  EXPECT_EQ(to_string(list.at("mtp.2.confidence_head.proj.weight")), "[1, 152] BF16");
  for (const char* none : {"mtp.0.e_proj.weight", "mtp.0.hnorm.weight", "mtp.0.norm.weight",
                           "mtp.1.main_proj.weight", "mtp.1.norm.weight"})
    EXPECT_FALSE(list.contains(none)) << none;
  for (const char* further : {"mtp.", "model.mtp.", "model.layers."}) {
    std::vector<NamedTensor> stored = official_tensor_list(config, true);
    for (NamedTensor& tensor : stored) {
      if (!tensor.name.starts_with("mtp.")) continue;
      const bool layers = std::string(further) == "model.layers.";
      const std::string block(1, static_cast<char>(tensor.name[4] + (layers ? 4 : 0)));
      tensor.name = further + block + tensor.name.substr(5);
      if (const size_t at = tensor.name.find(".attn.wkv."); layers && at != std::string::npos)
        tensor.name.replace(at, 10, ".self_attn.kv_proj.");
    }
    const test::TempFolder folder;
    test::write_zero_model(folder, stored, test::tiny_dspark_json());
    const Model model = Model::load(folder.path(), DrafterKind::kDspark);
    EXPECT_TRUE(model.weights().unused.empty()) << model.weights().unused.front();
    EXPECT_TRUE(model.weights().skipped.empty()) << model.weights().skipped.front();
    EXPECT_EQ(model.weights().drafter->layers.size(), 3u);
    EXPECT_FALSE(Model::load(folder.path()).weights().skipped.empty());
  }
}

// The converse: with any one of them missing (here renamed) it reports an error.
TEST(TensorList, EveryTensorIsRequired) {
  const ModelConfig config = test::tiny_config();
  const std::vector<NamedTensor> list = official_tensor_list(config, false);
  const test::TempFolder folder;
  test::write_zero_model(folder, list);
  std::string bytes = read_text_file(folder.file("model.safetensors"));
  for (const NamedTensor& tensor : list) {
    const size_t at = bytes.find('"' + tensor.name + '"') + 1;
    const char first = std::exchange(bytes[at], '_');
    folder.write("model.safetensors", bytes);
    bytes[at] = first;
    const Checkpoint checkpoint = Checkpoint::open(folder.path());
    EXPECT_TRUE(
        test::says(test::error_of(ErrorCode::kBadInput, [&] { load_weights(checkpoint, config); }),
                   tensor.name + " is missing from"));
  }
}

TEST(TensorList, RejectsColumnsThatAreNoMultipleOfAGroup) {
  ModelConfig config = test::tiny_config();
  config.expert_dim = 100;
  EXPECT_TRUE(test::says(
      test::error_of(ErrorCode::kUnsupported, [&] { official_tensor_list(config, false); }),
      "layers.0.ffn.experts.0.w2: MXFP4 needs k to be a multiple of 32, k is 100"));
}

}  // namespace
}  // namespace dsv4
