// Images packed on the GPU have the bytes of those that the CPU packs; and the experts of a model
// that is placed for official numerics are the images of its files.

#include "dsv4/ops/kbit/pack_image.h"
#include "dsv4/formats/pack_kbit_image.h"

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <set>
#include <vector>

#include "dsv4/base/error.h"
#include "dsv4/device/device.h"
#include "dsv4/formats/codebook.h"
#include "dsv4/plan/synthetic.h"
#include "dsv4/tensor/buffer.h"
#include "tests/harness/arena.h"
#include "tests/harness/gpu.h"
#include "tests/harness/weights.h"

namespace dsv4 {
namespace {

class PackImage : public testing::Test {
 protected:
  void SetUp() override {
    if (test::gpu() == nullptr) GTEST_SKIP() << "no GPU";
  }
};

std::vector<uint8_t> pack_on_cpu(const KbitImage& image, std::span<const WeightView> weights) {
  std::vector<uint8_t> bytes(static_cast<size_t>(image.bytes()));
  const auto strip = static_cast<size_t>(image.strip_bytes());
  for (int64_t s = 0; s < image.num_strips(); ++s)
    pack_kbit_strip(image, weights, s,
                    std::span(bytes).subspan(static_cast<size_t>(s) * strip, strip));
  return bytes;
}

Buffer on_device(Device& device, const ConstTensorView& from) {
  Buffer copy(DType::kU8, {from.bytes()}, device.memory());
  device.wait();  // zeroed on the device's stream
  device.memory().upload(copy.view().data, from.data, from.bytes());
  return copy;
}

std::vector<uint8_t> pack_on_gpu(const KbitImage& image, std::span<const WeightView> weights) {
  Device& device = *test::gpu();
  std::vector<Buffer> memory;
  std::vector<FlatKbit> flat;
  for (const WeightView& w : weights) {
    const Buffer& planes = memory.emplace_back(on_device(device, w.data));
    const auto* at = reinterpret_cast<const uint32_t*>(planes.view().data);
    const Buffer& scale = memory.emplace_back(on_device(device, w.scale));
    flat.push_back({at, scale.as<uint8_t>()});
  }
  const Buffer out(DType::kU8, {image.bytes()}, device.memory());
  pack_kbit_image(device.stream(), image, flat, out.view().data);
  device.wait();
  std::vector<uint8_t> bytes(static_cast<size_t>(image.bytes()));
  device.memory().download(reinterpret_cast<std::byte*>(bytes.data()), out.view().data,
                           image.bytes());
  return bytes;
}

TEST_F(PackImage, HasTheBytesOfTheCpu) {
  Rng rng(1);
  for (const test::StoredAs& stored : {test::StoredAs{WeightFormat::kKbit, 2},
                                       {WeightFormat::kKbit, 3},
                                       {WeightFormat::kKbit, 4},
                                       {WeightFormat::kKbit, 5},
                                       {WeightFormat::kMxfp4},
                                       {WeightFormat::kNvfp4}}) {
    for (const int64_t n : {8, 40, 64}) {
      for (const int64_t k : {32, 288, 512, 7168}) {
        SCOPED_TRACE(fmt::format("{} n={} k={}", name(stored), n, k));
        test::Arena arena;
        std::vector<WeightView> both{test::random_weight(arena, rng, stored, n, k),
                                     test::random_weight(arena, rng, stored, n, k)};
        both[1].codebook = both[0].codebook;
        const KbitImage one = kbit_image(both[0]), two = kbit_image(both[0], both[1]);
        EXPECT_EQ(pack_on_gpu(one, {both.data(), 1}), pack_on_cpu(one, {both.data(), 1}));
        EXPECT_EQ(pack_on_gpu(two, both), pack_on_cpu(two, both));
      }
    }
  }
}

std::vector<uint8_t> download(const Device* device, const ConstTensorView& view) {
  std::vector<uint8_t> bytes(static_cast<size_t>(view.bytes()));
  const_cast<Device*>(device)->memory().download(reinterpret_cast<std::byte*>(bytes.data()),
                                                 view.data, view.bytes());
  return bytes;
}

uint8_t only_scale(const KbitImage& image, const std::vector<uint8_t>& bytes) {
  std::set<uint8_t> scales;
  for (int64_t u = 0; u < image.num_strips() * image.units_along_k(); ++u)
    for (int64_t i = 0; i < image.scale_bytes(); ++i)
      scales.insert(bytes[static_cast<size_t>((u + 1) * image.unit_bytes() - 1 - i)]);
  EXPECT_EQ(scales.size(), 1u);
  return *scales.begin();
}

// One synthetic layer twice: as files, whose experts the CPU packs, and as images.
void check_synthetic(const SyntheticFormats& formats) {
  const std::shared_ptr<Device> device(test::gpu(), [](Device*) {});
  const auto model_for = [&](Numerics numerics) {
    Model model = synthetic_model("flash", formats, 1, 1);
    make_on_device(model, device, 3, 0, {.numerics = numerics});
    return model;
  };
  const Model files = model_for(Numerics::kExact), packed = model_for(Numerics::kOfficial);
  EXPECT_TRUE(files.weights().layers[0].moe.images.empty());
  const ExpertImages& images = packed.weights().layers[0].moe.images;
  ASSERT_FALSE(images.empty());
  EXPECT_EQ(images.gate_up_bytes.dim(0), 256);
  const int64_t file_bytes = files.weights().layers[0].moe.stack().expert_bytes(0);
  EXPECT_EQ(images.gate_up.bytes() + images.down.bytes(), file_bytes);
  EXPECT_EQ(download(device.get(), images.scale2).size(), 256u * 3 * 4);
  // Random bits are made by place and size, so only shapes can be compared with `files`.
  // Scales of synthetic weights are one byte, which depends on the width of a row.
  const uint8_t scales[] = {
      only_scale(images.gate_up, download(device.get(), images.gate_up_bytes)),
      only_scale(images.down, download(device.get(), images.down_bytes))};
  EXPECT_EQ(may_fold(images), !images.exponents.empty());
  if (images.exponents.empty()) return;
  const std::vector<uint8_t> exponents = download(device.get(), images.exponents);
  std::vector<int32_t> largest(exponents.size() / sizeof(int32_t));
  std::memcpy(largest.data(), exponents.data(), exponents.size());
  std::vector<int32_t> want;
  for (int e = 0; e < 256; ++e) want.insert(want.end(), {scales[0], scales[0], scales[1]});
  EXPECT_EQ(largest, want);
}

TEST_F(PackImage, SyntheticExpertsAreTheImagesOfTheirFiles) {
  check_synthetic(recipe_of_flags("k3", ""));
  check_synthetic({{}, WeightFormat::kMxfp4});
  check_synthetic({{}, WeightFormat::kNvfp4});
}

}  // namespace
}  // namespace dsv4
