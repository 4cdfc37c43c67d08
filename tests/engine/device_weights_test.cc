#include "dsv4/engine/device_weights.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <set>
#include <string>

#include "dsv4/base/error.h"
#if DSV4_CUDA
#include "dsv4/device/device.h"
#endif
#include "dsv4/engine/stored_images_test.h"
#include "dsv4/plan/synthetic.h"

namespace dsv4 {
namespace {

Model small_synthetic(const char* experts, const char* release = "flash") {
  const auto released = released_format(experts);
  return synthetic_model(
      release, released ? SyntheticFormats({}, *released) : recipe_of_flags(experts, ""), 3, 1);
}

// ops/parts/experts requires equal strides: every tensor of expert e is e strides after expert 0's.
TEST(DeviceWeights, ExpertsHaveEqualStrides) {
  Model model = small_synthetic("k3");
  const std::vector<TensorPlace> places = place_tensors(model);
  std::vector<std::byte> block(1);  // never read: only addresses matter
  redirect_tensors(model, places, block.data());
  for (const LayerWeights& layer : model.weights().layers) {
    const auto& experts = layer.moe.routed;
    const std::ptrdiff_t distance = experts[1].w1.data.data - experts[0].w1.data.data;
    for (size_t e = 0; e < experts.size(); ++e) {
      const std::ptrdiff_t at = distance * static_cast<std::ptrdiff_t>(e);
      EXPECT_EQ(experts[e].w1.data.data - experts[0].w1.data.data, at);
      EXPECT_EQ(experts[e].w3.scale.data - experts[0].w3.scale.data, at);
      EXPECT_EQ(experts[e].w2.codebook.data - experts[0].w2.codebook.data, at);
    }
  }
}

#if DSV4_CUDA
// A model for official numerics on Hopper: images take the place of the experts' matrices, and
// weights need no more memory than as files, but for the factors that were numbers before, and the
// largest exponents of MXFP4.
void check_images(const char* format) {
  SCOPED_TRACE(format);
  const std::unique_ptr<Device> hopper = Device::dry_run({.name = "H", .major = 9});
  Model files = small_synthetic(format), model = small_synthetic(format);
  const int64_t file_bytes = placed_bytes(place_tensors(files));
  EXPECT_TRUE(files.choose_layouts({.numerics = Numerics::kExact, .device = hopper.get()}).empty());
  const std::vector<PackedExperts> packed = model.choose_layouts({.device = hopper.get()});
  ASSERT_EQ(packed.size(), 3u);
  EXPECT_TRUE(model.choose_layouts({.device = hopper.get()}).empty()) << "chosen once";
  const std::vector<TensorPlace> places = place_tensors(model);
  const int64_t image_bytes = placed_bytes(places);
  const bool mxfp4 = files.weights().layers[0].moe.routed[0].w1.format == WeightFormat::kMxfp4;
  EXPECT_LE(image_bytes, file_bytes + 3 * 256 * 3 * 4 * (mxfp4 ? 2 : 1));
  std::vector<TensorPlace> copies = places;
  const std::vector<ImageJob> jobs = take_image_jobs(packed, copies);
  EXPECT_EQ(copies.size(), places.size() - 6);
  ASSERT_EQ(jobs.size(), 3u * 256);
  std::vector<std::byte> block(1);  // never read: only addresses matter
  redirect_tensors(model, places, block.data());
  const bool nvfp4 = files.weights().layers[0].moe.routed[0].w1.format == WeightFormat::kNvfp4;
  for (size_t l = 0; l < 3; ++l) {
    const auto* scale2 = packed[l].images.scale2.as<float>();
    EXPECT_EQ(std::count(scale2, scale2 + 256 * 3, nvfp4 ? kNvfp4Scale2 : 1.f), 256 * 3);
    const ExpertImages& images = model.weights().layers[l].moe.images;
    for (const size_t e : {0, 1, 255}) {
      const ImageJob& job = jobs[l * 256 + e];
      const auto i = static_cast<int64_t>(e);
      EXPECT_EQ(block.data() + job.gate_up_offset,
                images.gate_up_bytes.data + i * images.gate_up.bytes());
      EXPECT_EQ(block.data() + job.down_offset, images.down_bytes.data + i * images.down.bytes());
      EXPECT_EQ(job.stored.w3.data.data, packed[l].stored[e].w3.data.data);
      EXPECT_EQ(job.stored_bytes(), placed_bytes(staged_tensors(job)));
      EXPECT_EQ(job.stored_bytes(), job.gate_up.bytes() + job.down.bytes());
    }
  }
}

TEST(DeviceWeights, ImagesTakeThePlaceOfExperts) {
  for (const char* format : {"k3", "mxfp4", "nvfp4"}) check_images(format);
}

// Images go to the store, experts begin where it says, and neither bytes nor seeds of what stays
// change: the other tensors are those of a model without a store, in the same order.
TEST(DeviceWeights, ImagesGoToAStore) {
  const std::unique_ptr<Device> hopper = Device::dry_run({.name = "H", .major = 9});
  Model model = small_synthetic("mxfp4"), whole = small_synthetic("mxfp4");
  const std::vector<PackedExperts> packed = model.choose_layouts({.device = hopper.get()});
  whole.choose_layouts({.device = hopper.get()});
  std::vector<TensorPlace> copies = place_tensors(model);
  std::vector<ImageJob> jobs = take_image_jobs(packed, copies);
  const int64_t bytes = packed[0].images.gate_up.bytes() + packed[0].images.down.bytes();
  const ExpertPlaces places =
      plan_places({bytes, bytes, bytes}, 256, 100 * bytes, int64_t{1} << 40);
  EXPECT_EQ(places.place_bytes[0], bytes) << "images are multiples of 256 bytes";
  // Neither memory is touched: the store only hands out addresses.
  const std::shared_ptr<ExpertStore> store = test::fetch_from_reserved(model, places);
  send_to_store(*store, jobs);
  EXPECT_EQ(model.expert_store(), store.get());
  std::set<std::byte*> homes;
  for (size_t i = 0; i < jobs.size(); ++i) {
    const auto layer = static_cast<int64_t>(i) / 256, e = static_cast<int64_t>(i) % 256;
    ASSERT_TRUE(jobs[i].stored_at.has_value());
    EXPECT_EQ(jobs[i].stored_at->home, store->home(layer, e));
    EXPECT_EQ(jobs[i].stored_at->place, store->first_place(layer, e));
    EXPECT_EQ(jobs[i].stored_at->index, static_cast<int64_t>(i));
    homes.insert(jobs[i].stored_at->home);
  }
  EXPECT_EQ(homes.size(), jobs.size());
  // What is left to place: all but the images.
  const std::vector<TensorPlace> left = place_tensors(model);
  std::vector<TensorPlace> all = place_tensors(whole);
  ASSERT_EQ(left.size(), all.size() - 6);
  ASSERT_EQ(left.size(), copies.size());
  for (size_t i = 0; i < left.size(); ++i) EXPECT_EQ(left[i].from.data, copies[i].from.data);
  EXPECT_EQ(placed_bytes(all) - placed_bytes(left), 3 * 256 * bytes);
}

// V4-Pro's experts have 7,168 columns: images where the codebook is e4m3, of 2 to 4 bits.
TEST(DeviceWeights, WideExpertsAreImages) {
  const std::unique_ptr<Device> hopper = Device::dry_run({.name = "H", .major = 9});
  const Context context{.device = hopper.get()};
  Model pro = small_synthetic("k2-e4m3", "pro");
  const int64_t file_bytes = placed_bytes(place_tensors(pro));
  for (const char* other : {"k2-bnf", "k5-e4m3"})
    EXPECT_TRUE(small_synthetic(other, "pro").choose_layouts(context).empty()) << other;
  EXPECT_EQ(pro.choose_layouts(context).size(), 3u);
  EXPECT_LE(placed_bytes(place_tensors(pro)), file_bytes + 3 * 384 * 3 * 4);
  const ExpertImages& images = pro.weights().layers[2].moe.images;
  EXPECT_EQ(images.gate_up.units_along_k(), 28);
  EXPECT_EQ(images.down.units_along_k(), 12);
  for (const char* fp4 : {"mxfp4", "nvfp4"})
    EXPECT_EQ(small_synthetic(fp4, "pro").choose_layouts(context).size(), 3u) << fp4;
}
#endif

// The error message, or an empty string.
std::string error_of_check(int64_t weights_gib, int64_t cache_gib) {
  constexpr int64_t kGib = int64_t{1} << 30;
  try {
    check_room(weights_gib * kGib, cache_gib * kGib, 79 * kGib, "a GPU");
    return "";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kResource);
    return error.what();
  }
}

TEST(DeviceWeights, RejectsWeightsAndCacheThatDoNotFit) {
  EXPECT_EQ(error_of_check(70, 9), "");
  EXPECT_EQ(error_of_check(79, 0), "");
  EXPECT_EQ(error_of_check(70, 10),
            "the weights take 70.0 GiB and the cache 10.0 GiB, a GPU has 79.0 GiB free: `dsv4 "
            "plan` says what fits (fewer tokens or sequences, fewer bits per expert, a larger "
            "GPU)");
  EXPECT_EQ(error_of_check(80, 10),
            "the weights take 80.0 GiB, a GPU has 79.0 GiB free: `dsv4 plan` says what fits (fewer "
            "bits per expert, a larger GPU)");
}

TEST(DeviceWeights, PlacesAreDisjointAndCoverEveryTensor) {
  Model model = small_synthetic("");
  const std::vector<TensorPlace> places = place_tensors(model);
  int64_t end = 0, bytes = 0;
  for (const TensorPlace& place : places) {
    EXPECT_EQ(place.offset % 256, 0);
    EXPECT_GE(place.offset, end);
    end = place.offset + place.from.bytes();
    bytes += place.from.bytes();
  }
  EXPECT_LE(end, placed_bytes(places));
  EXPECT_LT(placed_bytes(places) - bytes, static_cast<int64_t>(places.size()) * 256);
  int64_t seen = 0;
  std::set<const std::byte*> distinct;
  model.for_each_tensor([&](ConstTensorView& view) {
    if (distinct.insert(view.data).second) seen += view.bytes();
  });
  EXPECT_EQ(seen, bytes);
}

}  // namespace
}  // namespace dsv4
