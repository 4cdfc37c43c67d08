// Which calls a step on Hopper makes with experts in host memory, and without: dry runs, which need
// no GPU.

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "dsv4/device/device.h"
#include "dsv4/engine/model_cache.h"
#include "dsv4/engine/stored_images_test.h"
#include "dsv4/model/dry_run.h"
#include "dsv4/model/released.h"
#include "dsv4/plan/plan.h"
#include "dsv4/plan/synthetic.h"

namespace dsv4 {
namespace {

constexpr int64_t kLayers = 4;

class Calls final : public Observer {
 public:
  void observe(const OpCall& call) override {
    if (call.op() == "moe" || call.op() == "experts_fetch" || call.op() == "experts")
      names.push_back(std::string(call.op()) + "=" + std::string(call.impl().name));
    call.run();
  }
  std::vector<std::string> names;
};

std::vector<std::string> calls_of(const Model& model, Device& hopper, int64_t tokens) {
  Calls calls;
  const Context context{.device = &hopper, .observer = &calls};
  const ModelCache cache(model.config(), context.numerics, {.max_tokens = 1, .max_batch_tokens = 1},
                         unmapped_memory());
  dry_run(model, context, decode_step(model.cache_groups(), tokens, 300), cache.layers());
  return calls.names;
}

std::vector<std::string> every_layer(const std::vector<std::string>& of_layer) {
  std::vector<std::string> all;
  for (int64_t l = 0; l < kLayers; ++l) all.insert(all.end(), of_layer.begin(), of_layer.end());
  return all;
}

// Layers 0 to 2 route by token ids, the last one by its gate.
TEST(ExpertStep, FetchesBetweenRouterAndExperts) {
  const std::unique_ptr<Device> hopper =
      Device::dry_run({.name = "H", .major = 9, .num_sms = 132, .max_smem_per_block = 227 << 10});
  Model model = synthetic_model("flash", SyntheticFormats({}, WeightFormat::kMxfp4), kLayers, 1);
  const std::vector<PackedExperts> packed = model.choose_layouts({.device = hopper.get()});
  ASSERT_EQ(std::ssize(packed), kLayers);
  // All resident, before there is a store: the step of today.
  EXPECT_EQ(calls_of(model, *hopper, 1), every_layer({"moe=sm90_fused"}));
  const std::vector<std::string> eight = every_layer({"moe=sm90_few", "experts=sm90_few_e4m3"});
  EXPECT_EQ(calls_of(model, *hopper, 8), eight);

  const int64_t bytes = packed[0].images.gate_up.bytes() + packed[0].images.down.bytes();
  const ExpertPlaces places =
      plan_places(std::vector<int64_t>(kLayers, bytes), 256, 200 * bytes, int64_t{1} << 40);
  test::fetch_from_reserved(model, places);
  const std::vector<std::string> fetched =
      every_layer({"moe=sm90_few", "experts_fetch=sm90", "experts=sm90_few_e4m3"});
  EXPECT_EQ(calls_of(model, *hopper, 1), fetched);
  EXPECT_EQ(calls_of(model, *hopper, 8), fetched);
  const std::vector<std::string> many = calls_of(model, *hopper, 100);
  EXPECT_EQ(std::count(many.begin(), many.end(), "experts_fetch=sm90"), kLayers);
}

// The plan knows the sizes of images from the list of tensors alone.
TEST(ExpertStep, PlanHasTheBytesOfTheImages) {
  const std::unique_ptr<Device> hopper =
      Device::dry_run({.name = "H", .major = 9, .num_sms = 132, .max_smem_per_block = 227 << 10});
  const std::pair<const char*, const char*> models[] = {
      {"flash", "mxfp4"}, {"flash", "nvfp4"}, {"flash", "k2"}, {"flash", "k3"}, {"flash", "k4"},
      {"flash", "k5"},    {"pro", "mxfp4"},   {"pro", "k2"},   {"pro", "k4"}};
  for (const auto& [release, format] : models) {
    SCOPED_TRACE(testing::Message() << release << " " << format);
    const ModelConfig config = released_config(release);
    const auto released = released_format(format);
    const Recipe recipe = released ? Recipe() : recipe_of_flags(format, "");
    Model model = synthetic_model(
        release, released ? SyntheticFormats({}, *released) : SyntheticFormats(recipe), kLayers, 1);
    const std::vector<PackedExperts> packed = model.choose_layouts({.device = hopper.get()});
    ASSERT_EQ(std::ssize(packed), kLayers);
    const MemoryPlan plan =
        plan_memory(config,
                    convert_list(stored_tensors(official_tensor_list(
                                     config, false, released.value_or(WeightFormat::kMxfp4))),
                                 recipe, config.o_groups),
                    {.context = 1000});
    for (size_t l = 0; l < packed.size(); ++l)
      EXPECT_EQ(plan.expert_bytes[l],
                packed[l].images.gate_up.bytes() + packed[l].images.down.bytes());
  }
}

}  // namespace
}  // namespace dsv4
