#include "dsv4/plan/expert_plan.h"

#include <gtest/gtest.h>

#include <map>
#include <tuple>

#include "dsv4/base/error.h"
#include "dsv4/model/released.h"
#include "tests/harness/errors.h"

namespace dsv4 {
namespace {

// Each is made once: the lists are long. "": as released.
const MemoryPlan& plan_of(const std::string& release, const std::string& experts) {
  static std::map<std::pair<std::string, std::string>, MemoryPlan> made;
  const auto key = std::pair(release, experts);
  if (const auto at = made.find(key); at != made.end()) return at->second;
  const ModelConfig config = released_config(release);
  const ConvertList list = convert_list(stored_tensors(official_tensor_list(config, false)),
                                        recipe_of_flags(experts, ""), config.o_groups);
  return made.emplace(key, plan_memory(config, list, {.context = 131072})).first->second;
}

Machine gpu(double gib, double reserve) {
  Machine machine = parse_machine("1xh200");
  machine.device_bytes = static_cast<int64_t>(gib * static_cast<double>(kGiB));
  machine.reserve_bytes = static_cast<int64_t>(reserve * static_cast<double>(kGiB));
  return machine;
}

constexpr int64_t kHuge = int64_t{1} << 50;

// Shares by hand: X experts fit beside the rest of the model, of which L layers of E have s places
// each and 2 (E - s) more are in transit, or 2 X / 32 if that is less. The comments are X / (L E),
// the shares of the design with its 16 experts in transit.
TEST(ExpertPlan, SharesOfTheDesign) {
  struct Row {
    const char *release, *experts;
    double gib, reserve, share;
  };
  const Row rows[] = {{"flash", "k3", 139, 6, 1},         {"flash", "", 139, 6, 0.902},  // 0.907
                      {"flash", "k5", 139, 6, 0.7216},                                   // 0.735
                      {"pro", "k2", 139, 6, 0.2436},                                     // 0.260
                      {"pro", "k3", 139, 6, 0.169},                                      // 0.180
                      {"pro", "", 139, 6, 0.1291},                                       // 0.138
                      {"flash", "k3", 78, 6, 0.5835},                                    // 0.603
                      {"flash", "", 78, 6, 0.4353},                                      // 0.462
                      {"flash", "k5", 78, 6, 0.3504},                                    // 0.374
                      {"flash", "k3", 44.5, 2.5, 0.2971},                                // 0.317
                      {"flash", "", 44.5, 2.5, 0.2277},                                  // 0.243
                      {"flash", "k3", 23.5, 1.5, 0.1182},                                // 0.126
                      {"flash", "", 23.5, 1.5, 0.0899}};                                 // 0.096
  for (const Row& row : rows) {
    SCOPED_TRACE(fmt::format("{} {} {} GiB", row.release, row.experts, row.gib));
    const ExpertFit fit = fit_experts(plan_of(row.release, row.experts), gpu(row.gib, row.reserve),
                                      {.host_bytes = kHuge});
    EXPECT_NEAR(fit.share(), row.share, 0.0016);
    EXPECT_EQ(fit.fixed(), row.share == 1 ? fit.places.all() : 0);
  }
}

// One expert more would not fit.
TEST(ExpertPlan, TakesAllTheRoom) {
  for (const char* experts : {"k3", ""}) {
    const ExpertFit fit =
        fit_experts(plan_of("flash", experts), parse_machine("1xh100"), {.host_bytes = kHuge});
    const int64_t bytes = fit.places.place_bytes[7];
    EXPECT_EQ(fit.places.all(), 43 * 256);
    EXPECT_LE(fit.gpu_need(), fit.gpu_room);
    EXPECT_GT(fit.gpu_need() + bytes, fit.gpu_room);
    EXPECT_GT(fit.places.transient(), 0);
    // Three matrices of 2048 x 4096 weights in 3.25 or 4.25 bits.
    EXPECT_EQ(bytes, 3 * 2048 * 4096 / 32 * (*experts != '\0' ? 13 : 17));
    EXPECT_EQ(fit.token_bytes(), 43 * 6 * bytes);
    EXPECT_NEAR(fit.link_bytes(), static_cast<double>(fit.token_bytes()) * (1 - fit.share()), 1);
    EXPECT_EQ(fit.all_bytes(), fit.places.all() * bytes);
    EXPECT_EQ(fit.places.host_bytes(), fit.all_bytes());
  }
}

// What host memory lacks has to stay on the GPU; where both lack it, the plan says so.
TEST(ExpertPlan, FixesWhatHostMemoryDoesNotHold) {
  const MemoryPlan& plan = plan_of("flash", "");
  const Machine h200 = parse_machine("1xh200");
  const ExpertFit fit = fit_experts(plan, h200, {.host_bytes = 124 * kGiB});
  EXPECT_GT(fit.fixed(), 0);
  EXPECT_EQ(fit.host_room, 124 * kGiB);
  EXPECT_LE(fit.places.host_bytes(), fit.host_room);
  EXPECT_GT(fit.places.host_bytes() + fit.places.place_bytes[0], fit.host_room);
  EXPECT_EQ(fit_experts(plan, h200, {.host_bytes = 14 * kGiB}).share(), fit.share());
  EXPECT_TRUE(
      test::says(test::error_of(ErrorCode::kResource,
                                [&] { fit_experts(plan, h200, {.host_bytes = 12 * kGiB}); }),
                 "12.00 GiB of host memory hold 963 of 11008 experts, and the GPU holds"));
}

// Layers of different sizes are added up as they are, not as their average.
TEST(ExpertPlan, CountsEachLayer) {
  const ModelConfig config = released_config("flash");
  const Recipe recipe = parse_recipe("experts k3\nexperts 7-8 k4\n", "a recipe");
  const MemoryPlan plan = plan_memory(
      config,
      convert_list(stored_tensors(official_tensor_list(config, false)), recipe, config.o_groups),
      {.context = 131072});
  constexpr int64_t kBlocks = 3 * 2048 * 4096 / 32;
  const ExpertFit fit = fit_experts(plan, parse_machine("1xh100"), {.host_bytes = kHuge});
  for (int64_t l = 0; l < 43; ++l)
    EXPECT_EQ(fit.places.place_bytes[static_cast<size_t>(l)],
              kBlocks * (l == 7 || l == 8 ? 17 : 13));
  EXPECT_EQ(fit.all_bytes(), 256 * kBlocks * (41 * 13 + 2 * 17));
  EXPECT_EQ(fit.places.transient_bytes(), kBlocks * 17);
  double outside = 0;
  for (int64_t l = 0; l < 43; ++l)
    outside += static_cast<double>(6 * (256 - fit.places.kept(l)) *
                                   fit.places.place_bytes[static_cast<size_t>(l)]) /
               256;
  EXPECT_NEAR(fit.link_bytes(), outside, 1);
}

TEST(ExpertPlan, RefusesExpertsWithoutImages) {
  EXPECT_TRUE(test::says(test::error_of(ErrorCode::kUnsupported,
                                        [&] {
                                          fit_experts(plan_of("flash", "fp8"),
                                                      parse_machine("1xh200"),
                                                      {.host_bytes = kHuge});
                                        }),
                         "those of 43 layers have none"));
}

TEST(ExpertPlan, TakesWhatIsGiven) {
  const MemoryPlan& plan = plan_of("flash", "k3");
  const ExpertFit fit =
      fit_experts(plan, parse_machine("1xh200"), {.gpu_bytes = 20 * kGiB, .host_bytes = kHuge});
  EXPECT_LE(fit.places.gpu_bytes(), 20 * kGiB);
  EXPECT_GT(fit.places.gpu_bytes() + fit.places.place_bytes[0], 20 * kGiB);
  const auto error = [&](const Machine& machine, const ExpertRequest& request) {
    return test::error_of(ErrorCode::kResource, [&] { fit_experts(plan, machine, request); });
  };
  EXPECT_TRUE(test::says(error(parse_machine("1xh100"), {.gpu_bytes = 70 * kGiB}),
                         "of experts, 70.00 GiB are wanted"));
  EXPECT_TRUE(test::says(error(gpu(12, 6), {.host_bytes = kHuge}),
                         "has room for 6.00 GiB: dense weights and the cache take"));
  EXPECT_EQ(
      test::error_of(ErrorCode::kBadInput, [&] { fit_experts(plan, parse_machine("2xh100"), {}); }),
      "experts in host memory are planned for one GPU, not for 2xh100");
}

}  // namespace
}  // namespace dsv4
