// The two forms of llama.cpp's imatrix, written here byte by byte, and what weights get of them.

#include "dsv4/convert/llama_imatrix.h"

#include <gtest/gtest.h>

#include <cstring>

#include "dsv4/base/error.h"
#include "dsv4/base/rng.h"
#include "dsv4/convert/imatrix.h"
#include "tests/harness/errors.h"
#include "tests/harness/temp_folder.h"

namespace dsv4 {
namespace {

class Bytes {
 public:
  template <class T>
  Bytes& number(T value) {
    const auto* from = reinterpret_cast<const char*>(&value);
    text_.append(from, sizeof(T));
    return *this;
  }
  Bytes& text(const std::string& value) {
    number<uint64_t>(value.size());
    text_ += value;
    return *this;
  }
  Bytes& raw(const std::string& value) {
    text_ += value;
    return *this;
  }
  void align(size_t to) { text_.resize((text_.size() + to - 1) / to * to); }
  const std::string& str() const { return text_; }

 private:
  std::string text_;
};

struct Sums {
  std::string name;
  int64_t k = 0;
  std::vector<float> counts, sums;  // [matrices], [matrices, k]
};

// As llama-imatrix writes it, with metadata of several types.
std::string gguf(const std::vector<Sums>& all, uint32_t alignment) {
  Bytes file;
  file.raw("GGUF").number<uint32_t>(3).number<uint64_t>(2 * all.size()).number<uint64_t>(5);
  file.text("general.type").number<uint32_t>(8).text("imatrix");
  file.text("imatrix.datasets").number<uint32_t>(9).number<uint32_t>(8).number<uint64_t>(1);
  file.text("calibration.txt");
  file.text("imatrix.chunk_count").number<uint32_t>(4).number<uint32_t>(7);
  file.text("general.alignment").number<uint32_t>(4).number<uint32_t>(alignment);
  file.text("numbers").number<uint32_t>(9).number<uint32_t>(6).number<uint64_t>(2);
  file.number(1.f).number(2.f);
  Bytes data;
  const auto tensor = [&](const std::string& name, int64_t columns, const std::vector<float>& v) {
    data.align(alignment);
    file.text(name).number<uint32_t>(2).number<int64_t>(columns);
    file.number<uint64_t>(v.size() / static_cast<size_t>(columns));
    file.number<uint32_t>(0).number<uint64_t>(data.str().size());
    for (const float value : v) data.number(value);
  };
  for (const Sums& one : all) {
    tensor(one.name + ".in_sum2", one.k, one.sums);
    tensor(one.name + ".counts", 1, one.counts);
  }
  file.align(alignment);
  return file.raw(data.str()).str();
}

std::string legacy(const std::vector<Sums>& all) {
  constexpr int32_t kCalls = 7;
  Bytes file;
  file.number<int32_t>(static_cast<int32_t>(all.size()));
  for (const Sums& one : all) {
    file.number<int32_t>(static_cast<int32_t>(one.name.size())).raw(one.name).number(kCalls);
    file.number<int32_t>(static_cast<int32_t>(one.sums.size()));
    for (size_t i = 0; i < one.sums.size(); ++i)
      file.number(one.sums[i] / one.counts[i / static_cast<size_t>(one.k)] * float{kCalls});
  }
  return file.number<int32_t>(3).number<int32_t>(4).raw("text").str();
}

LlamaImatrix parse(const std::string& bytes) {
  return parse_llama_imatrix(std::as_bytes(std::span(bytes)), "file");
}

ConvertList list_of(const std::vector<std::string>& names, int64_t k) {
  StoredTensors stored;
  for (const std::string& name : names)
    stored[name + ".weight"] = TensorMeta::contiguous(DType::kF32, {4, k});
  return convert_list(stored, parse_recipe("experts k3\nattn k3\nhead k3", "recipe"));
}

class LlamaFile : public testing::Test {
 protected:
  Sums random(const std::string& name, int64_t matrices) {
    Sums one{.name = name, .k = kColumns};
    for (int64_t m = 0; m < matrices; ++m) {
      one.counts.push_back(static_cast<float>(1 + rng_.below(50)));
      for (int64_t j = 0; j < kColumns; ++j)
        one.sums.push_back(static_cast<float>(100 * rng_.uniform()));
    }
    return one;
  }
  static float mean(const Sums& one, size_t m, size_t j) {
    return one.sums[m * kColumns + j] / one.counts[m];
  }

  static constexpr int64_t kColumns = 32;
  Rng rng_{5};
  const std::vector<Sums> all_ = {random("blk.1.ffn_down_exps.weight", 3),
                                  random("blk.0.attn_q_a.weight", 1),
                                  random("blk.0.attn_output_a.weight", 2),
                                  random("blk.2.attn_kv.weight", 1), random("strange", 1)};
  const ConvertList list_ =
      list_of({"layers.0.attn.wq_a", "layers.0.attn.wo_a", "layers.1.ffn.experts.0.w2",
               "layers.1.ffn.experts.1.w2", "layers.1.ffn.experts.2.w2", "mtp.0.attn.wkv", "head"},
              kColumns);
};

TEST_F(LlamaFile, BothFormsGiveWeightsTheirMeans) {
  for (const std::string& bytes : {gguf(all_, 32), gguf(all_, 8), legacy(all_)}) {
    const auto got = map_llama_imatrix(parse(bytes), list_, "file");
    ASSERT_EQ(got.size(), 7u);
    EXPECT_TRUE(got.contains("strange"));
    for (size_t j = 0; j < kColumns; ++j) {
      for (size_t e = 0; e < 3; ++e)
        EXPECT_FLOAT_EQ(got.at(fmt::format("layers.1.ffn.experts.{}.w2", e))[j],
                        mean(all_[0], e, j));
      EXPECT_FLOAT_EQ(got.at("layers.0.attn.wq_a")[j], mean(all_[1], 0, j));
      EXPECT_FLOAT_EQ(got.at("mtp.0.attn.wkv")[j], mean(all_[3], 0, j));
    }
  }
  // All tokens of both groups count alike, where the file has their numbers.
  const auto got = map_llama_imatrix(parse(gguf(all_, 32)), list_, "file");
  const Sums& groups = all_[2];
  EXPECT_FLOAT_EQ(got.at("layers.0.attn.wo_a")[3], (groups.sums[3] + groups.sums[kColumns + 3]) /
                                                       (groups.counts[0] + groups.counts[1]));
}

// llama.cpp writes zeros for them.
TEST_F(LlamaFile, ExpertsWithoutTokensHaveNoEntry) {
  std::vector<Sums> all = all_;
  all[0].counts[1] = 0;
  std::fill_n(all[0].sums.begin() + kColumns, kColumns, 0.f);
  const auto got = map_llama_imatrix(parse(gguf(all, 32)), list_, "file");
  EXPECT_FALSE(got.contains("layers.1.ffn.experts.1.w2"));
  EXPECT_TRUE(got.contains("layers.1.ffn.experts.2.w2"));
}

TEST_F(LlamaFile, IsReadLikeAnyImatrix) {
  const test::TempFolder folder;
  for (const auto& [name, bytes] :
       {std::pair("a.gguf", gguf(all_, 32)), std::pair("a.dat", legacy(all_))}) {
    const std::string path = folder.write(name, bytes);
    const Imatrix imatrix(path, list_);
    const ImatrixUse use = check_imatrix(imatrix.vectors(), list_, path);
    EXPECT_EQ(use.used, 6) << name;
    EXPECT_EQ(use.missing, 1) << name;
    EXPECT_EQ(use.unknown, std::vector<std::string>{"strange"}) << name;
  }
}

TEST_F(LlamaFile, RefusesWhatDoesNotFit) {
  const auto error = [&](const std::string& bytes) {
    return test::error_of(ErrorCode::kBadInput,
                          [&] { map_llama_imatrix(parse(bytes), list_, "file"); });
  };
  std::vector<Sums> two_experts = all_;
  two_experts[0] = random("blk.1.ffn_down_exps.weight", 2);
  for (const std::string& bytes : {gguf(two_experts, 32), legacy(two_experts)})
    EXPECT_TRUE(test::says(error(bytes),
                           "blk.1.ffn_down_exps.weight has 64 values for "
                           "layers.1.ffn.experts.0.w2: want 3 matrices of 32"));
  for (const std::string& bytes : {gguf(all_, 32), legacy(all_).substr(0, 1200)})
    for (size_t end = 0; end < bytes.size(); end += 37)
      EXPECT_FALSE(error(bytes.substr(0, end)).empty()) << end;
  EXPECT_TRUE(test::says(error("GGUF\x09"), "the file ends in the middle"));
}

TEST(LlamaName, OfEveryKindOfWeight) {
  const auto name = [](const char* weight) { return llama_name(weight, 43).name; };
  EXPECT_EQ(name("layers.12.attn.indexer.wq_b"), "blk.12.indexer.attn_q_b.weight");
  EXPECT_EQ(name("layers.3.ffn.shared_experts.w3"), "blk.3.ffn_up_shexp.weight");
  EXPECT_EQ(name("mtp.0.e_proj"), "blk.43.nextn.e_proj.weight");
  EXPECT_EQ(name("head"), "output.weight");
  const LlamaName expert = llama_name("layers.3.ffn.experts.200.w1", 43);
  EXPECT_EQ(expert.name, "blk.3.ffn_gate_exps.weight");
  EXPECT_EQ(expert.matrix, 200);
  for (const char* weight : {"layers.3.hc_attn_fn", "layers.x.attn.wq_a", "layers.3", "nothing"})
    EXPECT_EQ(name(weight), "") << weight;
}

}  // namespace
}  // namespace dsv4
