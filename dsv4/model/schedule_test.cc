#include "dsv4/model/schedule.h"

#include <gtest/gtest.h>

#include "dsv4/model/released.h"

namespace dsv4 {
namespace {

std::string text_of(const std::vector<int>& ratios, int hashed = 0) {
  ModelConfig config;
  config.ratios = ratios;
  for (size_t l = 0; l < ratios.size(); ++l)
    config.hash_layers.push_back(static_cast<int>(l) < hashed);
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

}  // namespace
}  // namespace dsv4
