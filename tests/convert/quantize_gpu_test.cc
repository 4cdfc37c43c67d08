// quantize() on a GPU writes the folder that it writes on the CPU, byte for byte, and refuses the
// same weights with the same message. Needs a GPU; says so and skips without one.

#include <gtest/gtest.h>

#include <cmath>

#include "dsv4/base/error.h"
#include "dsv4/convert/quantize.h"
#include "tests/harness/checkpoint_folder.h"
#include "tests/harness/errors.h"
#include "tests/harness/gpu.h"

namespace dsv4 {
namespace {

using test::folder_bytes;
using test::TestSource;

class QuantizeOnGpu : public testing::Test {
 protected:
  void SetUp() override {
    if (test::gpu() == nullptr) GTEST_SKIP() << "no GPU";
  }

  QuantizeOptions options(const std::string& source, const std::string& recipe,
                          const Device* device) {
    return {.source = source,
            .out = folder_.file(device == nullptr ? "cpu" : "gpu"),
            .recipe = parse_recipe(recipe, "r"),
            .device = device};
  }
  void expect_equal(QuantizeOptions on_cpu) {
    QuantizeOptions on_gpu = on_cpu;
    on_gpu.device = test::gpu(), on_gpu.out = folder_.file("gpu");
    quantize(on_cpu, [](const QuantizeProgress&) {});
    quantize(on_gpu, [](const QuantizeProgress&) {});
    const auto want = folder_bytes(on_cpu.out), got = folder_bytes(on_gpu.out);
    ASSERT_EQ(want.size(), got.size());
    for (const auto& [file, bytes] : want) EXPECT_TRUE(got.at(file) == bytes) << file;
    for (const std::string& path : {on_cpu.out, on_gpu.out}) std::filesystem::remove_all(path);
  }

  test::TempFolder folder_;
};

// Weights of every stored format, with ragged rows of FP8 blocks, and of many blocks.
std::string write_source(const test::TempFolder& folder) {
  TestSource source(7);
  int layer = 0;
  for (const test::StoredAs& stored : test::kAllStored) {
    if (stored.format == WeightFormat::kKbit) continue;
    const std::string at = fmt::format("layers.{}", layer++ % 2);
    source.weight(fmt::format("{}.ffn.experts.{}.w1", at, layer), stored.format, 260, 4160);
  }
  source.weight("layers.0.attn.wkv", WeightFormat::kBF16, 1030, 2048);
  source.weight("layers.1.attn.wo_b", WeightFormat::kFp8Block, 384, 160, DType::kF32);
  source.weight("embed", WeightFormat::kBF16, 10, 64);
  return source.write(folder);
}

TEST_F(QuantizeOnGpu, TheBytesAreThoseOfTheCpu) {
  const std::string source = write_source(folder_);
  for (const char* recipe :
       {"experts k2\nattn k3", "experts k3\nattn k5-bnf", "experts k4-nf\nattn k4-bnf",
        "experts k5\nattn k2-nf", "experts nvfp4\nattn bf16", "experts mxfp4\nattn nvfp4",
        "experts 0 k4\nexperts 1 k3-bnf\nattn 0 fp8\nattn 1 k4"}) {
    for (const ScaleChoice scales : {ScaleChoice::kSearched, ScaleChoice::kReference}) {
      SCOPED_TRACE(fmt::format("{} {}", recipe, name(scales)));
      QuantizeOptions job = options(source, recipe, nullptr);
      job.scales = scales;
      job.shard_bytes = 500000;
      expect_equal(job);
    }
  }
}

// Stored codes with a scale2 that is no power of two.
TEST_F(QuantizeOnGpu, TakesKbitWeights) {
  QuantizeOptions once = options(write_source(folder_), "experts k5\nattn k4-bnf", nullptr);
  once.out = folder_.file("once");
  quantize(once, [](const QuantizeProgress&) {});
  expect_equal(options(once.out, "experts k3\nattn k2", nullptr));
}

TEST_F(QuantizeOnGpu, UsesTheImatrix) {
  const std::string source = write_source(folder_);
  Buffer importance(DType::kF32, {2048});
  Rng rng(8);
  for (int64_t i = 0; i < 2048; ++i)
    importance.as<float>()[i] = i < 32 ? 0.f : static_cast<float>(rng.uniform(0, 5));
  write_safetensors(folder_.file("imatrix"), {{"layers.0.attn.wkv", importance}});
  for (const char* recipe : {"attn k3\nexperts k2", "attn nvfp4", "attn mxfp4"}) {
    QuantizeOptions job = options(source, recipe, nullptr);
    job.imatrix = folder_.file("imatrix");
    expect_equal(job);
  }
}

TEST_F(QuantizeOnGpu, RefusesWithTheMessagesOfTheCpu) {
  for (const float value : {NAN, INFINITY}) {
    TestSource source;
    source.weight("layers.0.attn.wkv", WeightFormat::kF32, 4, 64);
    const TensorView bad_weight = source.buffer(DType::kF32, {4, 64});
    bad_weight.as<float>()[70] = value;
    source.tensor("layers.0.attn.wq_a.weight", bad_weight);
    const std::string model = source.write(folder_);
    std::string said[2];
    for (const Device* device :
         {static_cast<const Device*>(nullptr), static_cast<const Device*>(test::gpu())}) {
      QuantizeOptions job = options(model, std::isnan(value) ? "attn k3" : "attn nvfp4", device);
      job.restart = true;
      said[device != nullptr] = test::error_of(
          ErrorCode::kBadInput, [&] { quantize(job, [](const QuantizeProgress&) {}); });
    }
    EXPECT_EQ(said[0], said[1]);
    EXPECT_TRUE(test::says(said[0], "layers.0.attn.wq_a"));
  }
}

}  // namespace
}  // namespace dsv4
