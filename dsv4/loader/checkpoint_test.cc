#include "dsv4/loader/checkpoint.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>

#include "dsv4/base/error.h"
#include "dsv4/base/rng.h"
#include "dsv4/formats/kbit.h"
#include "dsv4/loader/shard_index.h"
#include "tests/harness/errors.h"
#include "tests/harness/temp_folder.h"

namespace dsv4 {
namespace {

using test::error_of;
using test::says;
using test::TempFolder;

// Builds one file from tensors filled with random bytes.
class Shard {
 public:
  Shard& add(const std::string& name, DType dtype, std::initializer_list<int64_t> shape) {
    buffers_.emplace_back(dtype, shape);
    Rng rng(std::hash<std::string>()(name));
    const TensorView& view = buffers_.back().view();
    for (int64_t i = 0; i < view.bytes(); ++i)
      view.data[i] = static_cast<std::byte>(rng.bits() & 0xffu);
    tensors_.emplace_back(name, view);
    return *this;
  }
  template <class T>
  Shard& set(T value) {  // the first element of the last added tensor
    *buffers_.back().as<T>() = value;
    return *this;
  }
  // Adds a valid k-bit weight.
  Shard& add_kbit(const std::string& prefix, int64_t n, int64_t k, int bits) {
    add(prefix + ".weight", DType::kI32, {n, k / 32, bits});
    add(prefix + ".scale", DType::kU8, {n, k / 32});
    return add_codebook(prefix, int64_t{1} << bits);
  }
  Shard& add_codebook(const std::string& prefix, int64_t size) {
    add(prefix + ".codebook", DType::kF32, {size});
    for (int64_t i = 0; i < size; ++i) buffers_.back().as<float>()[i] = static_cast<float>(i);
    return *this;
  }
  void write(const std::string& path) const { write_safetensors(path, tensors_); }

 private:
  std::deque<Buffer> buffers_;
  std::vector<std::pair<std::string, ConstTensorView>> tensors_;
};

std::string bad(const std::function<void()>& action) {
  return error_of(ErrorCode::kBadInput, action);
}

TEST(Checkpoint, OpensASingleFileUnderEitherName) {
  for (const char* name : {"model.safetensors", "weights.safetensors"}) {
    const TempFolder folder;
    Shard().add("norm.weight", DType::kBF16, {6}).write(folder.file(name));
    const Checkpoint checkpoint = Checkpoint::open(folder.path());
    EXPECT_EQ(checkpoint.folder(), folder.path());
    EXPECT_EQ(checkpoint.config_path(), folder.file("config.json"));
    ASSERT_EQ(checkpoint.tensors().size(), 1u);
    EXPECT_EQ(checkpoint.tensors().at("norm.weight").file, folder.file(name));
  }
}

TEST(Checkpoint, ReportsMissingFiles) {
  const TempFolder folder;
  const auto open = [&] { Checkpoint::open(folder.path()); };
  EXPECT_EQ(bad(open), fmt::format("no .safetensors file in {}", folder.path()));
  Shard().write(folder.file("a.safetensors"));
  Shard().write(folder.file("b.safetensors"));
  EXPECT_EQ(bad(open),
            fmt::format("{} has 2 .safetensors files but no model.safetensors.index.json",
                        folder.path()));
  const std::string none = folder.file("none");
  EXPECT_EQ(error_of(ErrorCode::kIo, [&] { Checkpoint::open(none); }),
            fmt::format("cannot read folder {}: No such file or directory", none));
}

TEST(Checkpoint, TensorChecksNameTypeAndShape) {
  const TempFolder folder;
  const std::string path = folder.file("model.safetensors");
  Shard()
      .add("layers.0.attn.attn_sink", DType::kF32, {32})
      .add("hc_head_scale", DType::kF32, {})
      .add("embed.weight", DType::kBF16, {4, 6})
      .write(path);
  const Checkpoint checkpoint = Checkpoint::open(folder.path());
  EXPECT_EQ(to_string(checkpoint.tensor("layers.0.attn.attn_sink", {DType::kF32}, {32})),
            "[32] F32");
  EXPECT_EQ(to_string(checkpoint.tensor("embed.weight", {DType::kF32, DType::kBF16}, {4, 6})),
            "[4, 6] BF16");
  EXPECT_EQ(to_string(checkpoint.tensor("hc_head_scale", {DType::kF32}, {})), "[] F32");

  const auto tensor = [&](const char* name, std::initializer_list<DType> dtypes,
                          std::initializer_list<int64_t> shape) {
    return bad([&] { checkpoint.tensor(name, dtypes, shape); });
  };
  EXPECT_EQ(tensor("layers.1.attn.attn_sink", {DType::kF32}, {32}),
            fmt::format("layers.1.attn.attn_sink is missing from {}", folder.path()));
  EXPECT_EQ(tensor("layers.0.attn.attn_sink", {DType::kF32}, {64}),
            fmt::format("layers.0.attn.attn_sink: want [64] F32, got [32] F32 ({})", path));
  EXPECT_EQ(tensor("embed.weight", {DType::kF32, DType::kF16}, {4, 6}),
            fmt::format("embed.weight: want [4, 6] F32|F16, got [4, 6] BF16 ({})", path));
  EXPECT_TRUE(says(tensor("embed.weight", {DType::kBF16}, {6, 4}), "want [6, 4] BF16, got [4, 6]"));
  EXPECT_TRUE(says(tensor("embed.weight", {DType::kBF16}, {4}), "want [4] BF16, got [4, 6]"));
  EXPECT_TRUE(says(tensor("embed.weight", {DType::kBF16}, {4, 6, 1}), "want [4, 6, 1] BF16"));
  EXPECT_TRUE(says(tensor("embed.weight", {DType::kBF16}, {}), "want [] BF16, got [4, 6]"));
}

TEST(Checkpoint, TracksRequestedNames) {
  const TempFolder folder;
  Shard()
      .add("a", DType::kF32, {1})
      .add("b", DType::kF32, {1})
      .add("c.weight", DType::kE4M3, {1, 1})
      .add("c.scale", DType::kE8M0, {1, 1})
      .add("d.weight", DType::kF32, {1, 1})
      .add("d.scale", DType::kF32, {1, 1})
      .write(folder.file("model.safetensors"));
  const Checkpoint checkpoint = Checkpoint::open(folder.path());
  EXPECT_EQ(checkpoint.unused().size(), 6u);
  EXPECT_TRUE(checkpoint.has("a"));
  EXPECT_FALSE(checkpoint.has("model.a"));
  checkpoint.tensor("a", {DType::kF32}, {1});
  checkpoint.weight("c", 1, 1);
  checkpoint.weight("d", 1, 1);  // F32 has no scale, so d.scale stays unused
  EXPECT_EQ(checkpoint.unused(), (std::vector<std::string>{"b", "d.scale"}));
}

struct FormatCase {
  const char* prefix;
  WeightFormat format;
  int64_t n, k;
};

TEST(Checkpoint, StoredDtypeDecidesTheFormat) {
  constexpr FormatCase kCases[] = {
      {"f32", WeightFormat::kF32, 3, 5},         {"bf16", WeightFormat::kBF16, 3, 5},
      {"f16", WeightFormat::kF16, 3, 5},         {"fp8", WeightFormat::kFp8Block, 130, 257},
      {"base", WeightFormat::kFp8Block, 7, 128}, {"inv", WeightFormat::kFp8Block, 128, 128},
      {"bytes", WeightFormat::kFp8Block, 1, 1},  {"mx", WeightFormat::kMxfp4, 5, 64},
      {"mxu", WeightFormat::kMxfp4, 5, 64},      {"nv", WeightFormat::kNvfp4, 5, 48},
      {"nv1", WeightFormat::kNvfp4, 5, 48},      {"cmx", WeightFormat::kMxfp4, 5, 64},
      {"cnv", WeightFormat::kNvfp4, 5, 48},
  };
  const TempFolder folder;
  Shard()
      .add("f32.weight", DType::kF32, {3, 5})
      .add("bf16.weight", DType::kBF16, {3, 5})
      .add("f16.weight", DType::kF16, {3, 5})
      .add("fp8.weight", DType::kE4M3, {130, 257})
      .add("fp8.scale", DType::kE8M0, {2, 3})
      .add("base.weight", DType::kE4M3, {7, 128})
      .add("base.scale", DType::kF32, {1, 1})
      .add("inv.weight", DType::kE4M3, {128, 128})
      .add("inv.weight_scale_inv", DType::kF32, {1, 1})
      .add("bytes.weight", DType::kE4M3, {1, 1})
      .add("bytes.scale", DType::kU8, {1, 1})
      .add("mx.weight", DType::kI8, {5, 32})
      .add("mx.scale", DType::kE8M0, {5, 2})
      .add("mxu.weight", DType::kU8, {5, 32})
      .add("mxu.scale", DType::kU8, {5, 2})
      .add("nv.weight", DType::kU8, {5, 24})
      .add("nv.weight_scale", DType::kE4M3, {5, 3})
      .add("nv.weight_scale_2", DType::kF32, {})
      .set(0.25f)
      .add("nv.input_scale", DType::kF32, {})
      .add("nv1.weight", DType::kI8, {5, 24})
      .add("nv1.weight_scale", DType::kE4M3, {5, 3})
      .add("nv1.weight_scale_2", DType::kF32, {1})
      .set(0.25f)
      .add("cmx.weight_packed", DType::kU8, {5, 32})  // compressed-tensors
      .add("cmx.weight_scale", DType::kU8, {5, 2})
      .add("cnv.weight_packed", DType::kU8, {5, 24})
      .add("cnv.weight_scale", DType::kE4M3, {5, 3})
      .add("cnv.weight_global_scale", DType::kF32, {1})
      .set(4.f)
      .write(folder.file("model.safetensors"));
  const Checkpoint checkpoint = Checkpoint::open(folder.path());
  for (const FormatCase& want : kCases) {
    SCOPED_TRACE(want.prefix);
    const WeightView weight = checkpoint.weight(want.prefix, want.n, want.k);
    EXPECT_EQ(weight.format, want.format);
    EXPECT_EQ(weight.n, want.n);
    EXPECT_EQ(weight.k, want.k);
    EXPECT_EQ(weight.scale2, want.format == WeightFormat::kNvfp4 ? 0.25f : 1.f);
    EXPECT_NO_THROW(check(want.prefix, weight));
    EXPECT_NO_THROW(weight_value(weight, want.n - 1, want.k - 1));
  }
  EXPECT_TRUE(checkpoint.unused().empty());
}

TEST(Checkpoint, ReportsInvalidWeights) {
  const TempFolder folder;
  const std::string path = folder.file("model.safetensors");
  Shard()
      .add("plain.weight", DType::kF32, {3, 5})
      .add("ids.weight", DType::kI64, {3, 5})
      .add("fp8.weight", DType::kE4M3, {128, 256})
      .add("short.weight", DType::kE4M3, {128, 256})
      .add("short.scale", DType::kE8M0, {1, 1})
      .add("half.weight", DType::kE4M3, {128, 256})
      .add("half.scale", DType::kBF16, {1, 2})
      .add("mx.weight", DType::kI8, {5, 32})
      .add("odd.weight", DType::kI8, {5, 20})
      .add("odd.scale", DType::kE8M0, {5, 2})
      .add("mxf.weight", DType::kI8, {5, 32})
      .add("mxf.scale", DType::kF32, {5, 2})
      .add("nv.weight", DType::kU8, {5, 24})
      .add("nv.weight_scale", DType::kE4M3, {5, 3})
      .write(path);
  const Checkpoint checkpoint = Checkpoint::open(folder.path());
  const auto weight = [&](const char* prefix, int64_t n, int64_t k) {
    return bad([&] { checkpoint.weight(prefix, n, k); });
  };
  const auto missing = [&](const char* name) {
    return fmt::format("{} is missing from {}", name, folder.path());
  };
  EXPECT_EQ(weight("none", 1, 1), missing("none.weight"));
  EXPECT_EQ(weight("fp8", 128, 256), missing("fp8.scale"));
  EXPECT_EQ(weight("mx", 5, 64), missing("mx.scale"));
  EXPECT_EQ(weight("nv", 5, 48), missing("nv.weight_scale_2"));
  EXPECT_TRUE(says(weight("plain", 5, 3), "plain.weight: want [5, 3] F32|BF16|F16|F8_E4M3|I8|U8"));
  EXPECT_TRUE(says(weight("ids", 3, 5), "got [3, 5] I64"));
  EXPECT_TRUE(says(weight("fp8", 256, 256), "fp8.weight: want [256, 256] F8_E4M3, got [128, 256]"));
  EXPECT_TRUE(
      says(weight("short", 128, 256), "short.scale: want [1, 2] F8_E8M0|F32|U8, got [1, 1]"));
  EXPECT_TRUE(
      says(weight("half", 128, 256), "half.scale: want [1, 2] F8_E8M0|F32|U8, got [1, 2] BF16"));
  EXPECT_TRUE(says(weight("mx", 5, 32), "mx.weight: want [5, 16] I8|U8, got [5, 32] I8"));
  EXPECT_TRUE(says(weight("mxf", 5, 64), "mxf.scale: want [5, 2] F8_E8M0|U8, got [5, 2] F32"));
  EXPECT_TRUE(
      says(weight("odd", 5, 40), "odd.weight: mxfp4 needs k to be a multiple of 32, k is 40"));
}

TEST(Checkpoint, KbitWeights) {
  const TempFolder folder;
  Shard()
      .add_kbit("k2", 5, 64, 2)
      .add_kbit("k3", 1, 32, 3)
      .add_kbit("k4", 3, 96, 4)
      .add_kbit("k5", 3, 96, 5)
      .add("k5.scale_2", DType::kF32, {})
      .set(0.5f)
      .write(folder.file("model.safetensors"));
  const Checkpoint checkpoint = Checkpoint::open(folder.path());
  for (const auto& [bits, n, k] : {std::tuple{2, 5, 64}, {3, 1, 32}, {4, 3, 96}, {5, 3, 96}}) {
    SCOPED_TRACE(bits);
    const WeightView weight = checkpoint.weight(fmt::format("k{}", bits), n, k);
    EXPECT_EQ(weight.format, WeightFormat::kKbit);
    EXPECT_EQ(weight.bits, bits);
    EXPECT_EQ(weight.scale2, bits == 5 ? 0.5f : 1.f);
    EXPECT_NO_THROW(check("w", weight));
    // Block b of row r is words [r, b, 0 .. K) of the file.
    const uint32_t* words = weight.data.row<uint32_t>(n - 1) + (k / 32 - 1) * bits;
    const double want =
        static_cast<double>(kbit_code(words, bits, 31)) *
        static_cast<double>(e4m4_to_f32(weight.scale.row<uint8_t>(n - 1)[k / 32 - 1]));
    EXPECT_EQ(weight_value(weight, n - 1, k - 1), want * (bits == 5 ? 0.5 : 1));
  }
  EXPECT_TRUE(checkpoint.unused().empty());
}

TEST(Checkpoint, ReportsInvalidKbitWeights) {
  const TempFolder folder;
  const std::string path = folder.file("model.safetensors");
  Shard shard;
  shard.add_kbit("good", 3, 64, 3);
  shard.add("six.weight", DType::kI32, {3, 2, 6}).add("one.weight", DType::kI32, {3, 2, 1});
  shard.add("flat.weight", DType::kI32, {3, 6}).add("bare.weight", DType::kI32, {3, 2, 3});
  const auto planes = [&](const std::string& prefix) -> Shard& {
    return shard.add(prefix + ".weight", DType::kI32, {3, 2, 3});
  };
  const auto scaled = [&](const std::string& prefix) -> Shard& {
    return planes(prefix).add(prefix + ".scale", DType::kU8, {3, 2});
  };
  planes("shape").add("shape.scale", DType::kU8, {3, 3});
  planes("dtype").add("dtype.scale", DType::kE8M0, {3, 2});
  scaled("nobook");
  scaled("wide").add_codebook("wide", 16);
  scaled("inf").add_codebook("inf", 8).set(INFINITY);
  scaled("nan").add_codebook("nan", 8).set(NAN);
  for (const auto& [prefix, value] :
       {std::pair{"zero", 0.f}, {"minus", -1.f}, {"nan2", NAN}, {"inf2", INFINITY}}) {
    scaled(prefix).add_codebook(prefix, 8).add(fmt::format("{}.scale_2", prefix), DType::kF32, {});
    shard.set(value);
  }
  scaled("many").add_codebook("many", 8).add("many.scale_2", DType::kF32, {2});
  shard.write(path);
  const Checkpoint checkpoint = Checkpoint::open(folder.path());
  const auto weight = [&](const char* prefix, int64_t n = 3, int64_t k = 64) {
    return bad([&] { checkpoint.weight(prefix, n, k); });
  };
  const auto planes_error = [&](const char* got, int64_t n = 3, int64_t k = 64) {
    return fmt::format(".weight: want k-bit planes [{}, {} / 32, 2..5] I32, got {} ({})", n, k, got,
                       path);
  };
  EXPECT_EQ(weight("six"), "six" + planes_error("[3, 2, 6] I32"));
  EXPECT_EQ(weight("one"), "one" + planes_error("[3, 2, 1] I32"));
  EXPECT_EQ(weight("flat"), "flat" + planes_error("[3, 6] I32"));
  EXPECT_EQ(weight("good", 4, 64), "good" + planes_error("[3, 2, 3] I32", 4, 64));
  EXPECT_EQ(weight("good", 3, 96), "good" + planes_error("[3, 2, 3] I32", 3, 96));
  EXPECT_EQ(weight("good", 3, 65), "good" + planes_error("[3, 2, 3] I32", 3, 65));
  EXPECT_EQ(weight("bare"), fmt::format("bare.scale is missing from {}", folder.path()));
  EXPECT_TRUE(says(weight("shape"), "shape.scale: want [3, 2] U8, got [3, 3] U8"));
  EXPECT_TRUE(says(weight("dtype"), "dtype.scale: want [3, 2] U8, got [3, 2] F8_E8M0"));
  EXPECT_EQ(weight("nobook"), fmt::format("nobook.codebook is missing from {}", folder.path()));
  EXPECT_TRUE(says(weight("wide"), "wide.codebook: want [8] F32, got [16] F32"));
  EXPECT_TRUE(says(weight("inf"), "inf.codebook: value 0 is not finite"));
  EXPECT_TRUE(says(weight("nan"), "nan.codebook: value 0 is not finite"));
  EXPECT_TRUE(says(weight("zero"), "zero.scale_2 is 0: want a positive number"));
  EXPECT_TRUE(says(weight("minus"), "minus.scale_2 is -1: want a positive number"));
  EXPECT_TRUE(says(weight("nan2"), "nan2.scale_2 is nan: want a positive number"));
  EXPECT_TRUE(says(weight("inf2"), "inf2.scale_2 is inf: want a positive number"));
  EXPECT_TRUE(says(weight("many"), "many.scale_2: want [1] F32, got [2] F32"));
}

TEST(Checkpoint, StackedExpertsBecomeSlices) {
  const TempFolder folder;
  const std::string experts = "model.layers.2.mlp.experts.";
  Shard()
      .add(experts + "gate_up_proj", DType::kE4M3, {2, 512, 128})
      .add(experts + "gate_up_proj_scale_inv", DType::kF32, {2, 4, 1})
      .add(experts + "down_proj", DType::kI8, {2, 128, 128})
      .add(experts + "down_proj_scale_inv", DType::kE8M0, {2, 128, 8})
      .write(folder.file("model.safetensors"));
  const Checkpoint checkpoint = Checkpoint::open(folder.path());
  const WeightView up = checkpoint.weight("layers.2.ffn.experts.1.w3", 256, 128);
  const SafetensorsFile file(folder.file("model.safetensors"));
  const ConstTensorView stacked = file.tensors().at(experts + "gate_up_proj");
  const ConstTensorView scales = file.tensors().at(experts + "gate_up_proj_scale_inv");
  EXPECT_EQ(std::memcmp(up.data.data, stacked.data + 3 * 256 * 128, 256 * 128), 0);
  EXPECT_EQ(std::memcmp(up.scale.data, scales.data + 4 * 6, 4 * 2), 0);
  EXPECT_NO_THROW(check("w3", up));
  EXPECT_EQ(checkpoint.weight("layers.2.ffn.experts.0.w2", 128, 256).format, WeightFormat::kMxfp4);
  EXPECT_EQ(checkpoint.unused().size(), 12u - 4u);
}

TEST(Checkpoint, RejectsScaleBlocksThatCrossStackedHalves) {
  const TempFolder folder;
  // 2 x 100 rows have two scale rows, but the first also covers rows 0..27 of w3.
  Shard()
      .add("layers.0.mlp.experts.gate_up_proj", DType::kE4M3, {1, 200, 128})
      .add("layers.0.mlp.experts.gate_up_proj_scale_inv", DType::kE8M0, {1, 2, 1})
      .write(folder.file("model.safetensors"));
  const Checkpoint checkpoint = Checkpoint::open(folder.path());
  EXPECT_TRUE(says(bad([&] { checkpoint.weight("layers.0.ffn.experts.0.w1", 100, 128); }),
                   "100 rows of stacked experts are not a multiple of the 128-row scale blocks"));
}

class Sharded : public testing::Test {
 protected:
  void SetUp() override {
    Shard().add("a", DType::kF32, {1}).add("b", DType::kF32, {2}).write(folder_.file(kFirst));
    Shard().add("c", DType::kF32, {3}).write(folder_.file(kSecond));
  }
  void index(const std::string& weight_map) {
    folder_.write("model.safetensors.index.json",
                  fmt::format(R"({{"metadata":{{"total_size":24,"x":[{{"y":null}},-1.5,true]}},)"
                              R"("weight_map":{}}})",
                              weight_map));
  }
  std::string open_error() {
    return bad([&] { Checkpoint::open(folder_.path()); });
  }

  static constexpr const char* kFirst = "model-00001-of-00002.safetensors";
  static constexpr const char* kSecond = "model-00002-of-00002.safetensors";
  const std::string whole_ = fmt::format(R"({{"a":"{0}","b":"{0}","c":"{1}"}})", kFirst, kSecond);
  TempFolder folder_;
};

TEST_F(Sharded, MergesShards) {
  index(whole_);
  const Checkpoint checkpoint = Checkpoint::open(folder_.path());
  EXPECT_EQ(checkpoint.tensors().size(), 3u);
  EXPECT_EQ(to_string(checkpoint.tensor("c", {DType::kF32}, {3})), "[3] F32");
  EXPECT_EQ(checkpoint.tensors().at("b").file, folder_.file(kFirst));
  EXPECT_EQ(checkpoint.tensors().at("c").file, folder_.file(kSecond));
}

TEST_F(Sharded, NamesMissingShards) {
  index(whole_);
  std::filesystem::remove(folder_.file(kSecond));
  EXPECT_EQ(open_error(),
            fmt::format("1 of 2 shards are missing from {}: {}", folder_.path(), kSecond));
}

TEST_F(Sharded, NamesTensorsMissingFromTheirShard) {
  index(fmt::format(R"({{"a":"{0}","b":"{1}","c":"{1}"}})", kFirst, kSecond));
  EXPECT_EQ(open_error(),
            fmt::format("b is not in {}, where model.safetensors.index.json says it is",
                        folder_.file(kSecond)));
}

TEST_F(Sharded, NamesTruncatedShard) {
  index(whole_);
  std::filesystem::resize_file(folder_.file(kSecond), 40);
  EXPECT_TRUE(says(open_error(), folder_.file(kSecond)));
}

TEST_F(Sharded, IncludesUnlistedTensors) {
  index(fmt::format(R"({{"a":"{0}","c":"{1}"}})", kFirst, kSecond));
  EXPECT_TRUE(Checkpoint::open(folder_.path()).has("b"));
}

TEST_F(Sharded, IndexResolvesDuplicates) {
  Shard().add("c", DType::kF32, {3}).add("a", DType::kI32, {7}).write(folder_.file(kSecond));
  index(whole_);
  EXPECT_EQ(Checkpoint::open(folder_.path()).tensors().at("a").file, folder_.file(kFirst));
  index(fmt::format(R"({{"b":"{0}","c":"{1}"}})", kFirst, kSecond));
  EXPECT_EQ(open_error(), fmt::format("a occurs twice: in {} and, as a, in {}",
                                      folder_.file(kFirst), folder_.file(kSecond)));
}

TEST_F(Sharded, RejectsTwoNamesForOneTensor) {
  Shard().add("norm.weight", DType::kF32, {3}).write(folder_.file(kFirst));
  Shard().add("model.norm.weight", DType::kF32, {3}).write(folder_.file(kSecond));
  index(fmt::format(R"({{"norm.weight":"{0}","model.norm.weight":"{1}"}})", kFirst, kSecond));
  EXPECT_TRUE(says(open_error(), "norm.weight occurs twice"));
}

TEST(ShardIndex, RejectsMalformedText) {
  struct Case {
    std::string text;
    const char* error;
  };
  const Case cases[] = {
      {"", "not valid JSON"},
      {"x", "not valid JSON at byte 1"},
      {"{}", "no weight_map"},
      {"[]", "an array is not allowed"},
      {"3", "a number is not allowed"},
      {"\"weight_map\"", "a string is not allowed"},
      {R"({"metadata":{"weight_map":{"a":"f"}}})", "no weight_map"},
      {R"({"weight_map":[]})", "weight_map: an array is not allowed"},
      {R"({"weight_map":"f"})", "weight_map: a string is not allowed"},
      {R"({"weight_map":null})", "weight_map: null is not allowed"},
      {R"({"weight_map":{"a":1}})", "weight_map: a: a number is not allowed"},
      {R"({"weight_map":{"a":{}}})", "weight_map: a: an object is not allowed"},
      {R"({"weight_map":{"a":["f"]}})", "weight_map: a: an array is not allowed"},
      {R"({"weight_map":{"a":"f","a":"g"}})", "weight_map: a: a second value"},
      {R"({"weight_map":{},"weight_map":{}})", "a second weight_map"},
      {R"({"weight_map":{"a":""}})", "a is in '', which is not a file name"},
      {R"({"weight_map":{"a":"../../secret"}})", "'../../secret', which is not a file name"},
      {R"({"weight_map":{"a":"/etc/passwd"}})", "'/etc/passwd', which is not a file name"},
      {R"({"weight_map":{"a":"f")", "not valid JSON"},
      {R"({"weight_map":{}} {})", "not valid JSON"},
      {std::string("{\"weight_map\":{}}\0x", 19), "NUL byte at byte 17"},
      {"{\"metadata\":" + std::string(1 << 20, '['), "nesting beyond 32 levels"},
  };
  for (const Case& c : cases) {
    const std::string text = bad([&] { parse_shard_index(c.text, "INDEX"); });
    EXPECT_TRUE(says(text, c.error));
    EXPECT_EQ(text.rfind("INDEX: ", 0), 0u) << text;
  }
}

// Weights under official and under transformers' names are equal (tests/golden/hf/README.md).
TEST(Checkpoint, BothNameStylesGiveTheSameTensors) {
  const Checkpoint official = Checkpoint::open("tests/golden/hf/mixed");
  const Checkpoint module = Checkpoint::open("tests/golden/hf/mixed_hf");
  ASSERT_EQ(official.tensors().size(), module.tensors().size());
  for (const auto& [name, want] : official.tensors()) {
    ASSERT_TRUE(module.has(name)) << name;
    const ConstTensorView& got = module.tensors().at(name).view;
    EXPECT_EQ(to_string(got), to_string(want.view)) << name;
    ASSERT_EQ(got.bytes(), want.view.bytes());
    EXPECT_EQ(std::memcmp(got.data, want.view.data, static_cast<size_t>(got.bytes())), 0) << name;
  }
}

}  // namespace
}  // namespace dsv4
