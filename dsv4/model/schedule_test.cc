#include "dsv4/model/schedule.h"

#include <gtest/gtest.h>

#include "dsv4/model/released.h"

namespace dsv4 {
namespace {

std::string text_of(const std::vector<int>& ratios, int hashed = 0) {
  ModelConfig config;
  config.ratios = ratios;
  for (size_t l = 0; l < ratios.size(); ++l) {
    config.kinds.push_back(kind_of_released_ratio(ratios[l]).value());
    config.hash_layers.push_back(static_cast<int>(l) < hashed);
  }
  return schedule_text(layer_schedule(config));
}

TEST(Schedule, TextOfTheReleases) {
  EXPECT_EQ(schedule_text(layer_schedule(released_config("flash"))),
            "2 x SWA+hash, CSA+hash, 20 x (HCA, CSA)");
  EXPECT_EQ(schedule_text(layer_schedule(released_config("pro"))),
            "2 x HCA+hash, CSA+hash, 29 x (HCA, CSA)");
}

TEST(Schedule, TextOfOddOnes) {
  EXPECT_EQ(text_of({}), "");
  EXPECT_EQ(text_of({4}), "CSA");
  EXPECT_EQ(text_of({0, 4, 128}, 1), "SWA+hash, CSA, HCA");
  EXPECT_EQ(text_of({0, 0, 0}), "3 x SWA");
  EXPECT_EQ(text_of({0, 4, 128, 0, 4, 128, 0}), "2 x (SWA, CSA, HCA), SWA");
  EXPECT_EQ(text_of({4, 4, 128, 4, 4, 128, 0}), "2 x (CSA, CSA, HCA), SWA");
}

TEST(Schedule, CacheGroupsOfTheReleases) {
  const std::vector<CacheGroupSpec> groups = cache_groups(released_config("flash"));
  ASSERT_EQ(groups.size(), 3u);
  EXPECT_EQ(groups[0].name, "window");
  EXPECT_EQ(groups[0].keep_tokens, 128);
  EXPECT_EQ(groups[0].page_entries, 64);
  EXPECT_EQ(groups[1].name, "CSA");
  EXPECT_EQ(groups[1].ratio, 4);
  EXPECT_EQ(groups[1].page_entries, 64);
  EXPECT_TRUE(groups[1].has_index);
  EXPECT_EQ(groups[2].name, "HCA");
  EXPECT_EQ(groups[2].ratio, 128);
  EXPECT_EQ(groups[2].page_entries, 2);
  EXPECT_FALSE(groups[2].has_index);
}

TEST(Schedule, CacheGroupsOfOtherRatios) {
  ModelConfig config;
  config.window = 48;
  config.kinds = {LayerKind::kHca, LayerKind::kCsa, LayerKind::kSwa, LayerKind::kCsa,
                  LayerKind::kHca};
  config.ratios = {512, 16, 0, 3, 512};
  config.hash_layers.resize(5);
  const std::vector<CacheGroupSpec> groups = cache_groups(config);
  ASSERT_EQ(groups.size(), 4u);
  EXPECT_EQ(groups[1].name, "CSA3");
  EXPECT_EQ(groups[1].page_entries, 64);
  EXPECT_EQ(groups[2].name, "CSA16");
  EXPECT_EQ(groups[2].page_entries, 16);
  EXPECT_EQ(groups[3].name, "HCA");
  EXPECT_EQ(groups[3].page_entries, 1);
  std::vector<int> of_layers;
  for (const LayerSpec& layer : layer_schedule(config)) of_layers.push_back(layer.group);
  EXPECT_EQ(of_layers, (std::vector<int>{3, 2, 0, 1, 3}));
}

}  // namespace
}  // namespace dsv4
