#include "dsv4/model/expert_counts.h"

#include <gtest/gtest.h>

#include "dsv4/base/error.h"
#include "tests/harness/errors.h"

namespace dsv4 {
namespace {

ModelConfig two_layers_of_four() {
  ModelConfig config;
  config.num_layers = 2, config.num_experts = 4;
  return config;
}

std::vector<std::vector<int32_t>> parse(const std::string& text) {
  return parse_expert_counts(text, "counts.json", two_layers_of_four());
}

TEST(ExpertCounts, TheMostUsedComeFirst) {
  EXPECT_EQ(parse(R"({"experts": 4, "layers": [[1, 5, 5, 0], [0, 0, 0, 9]]})"),
            (std::vector<std::vector<int32_t>>{{1, 2, 0, 3}, {3, 0, 1, 2}}));
}

TEST(ExpertCounts, ReadsWhatItWrites) {
  const std::string text = expert_counts_text({{0, 7, 7, 3}, {1, 2, 3, int64_t{1} << 62}});
  EXPECT_EQ(parse(text), (std::vector<std::vector<int32_t>>{{1, 2, 3, 0}, {3, 2, 1, 0}}));
  EXPECT_EQ(expert_counts_text({{0, 0}}), "{\"experts\":2,\"layers\":[[0,0]]}\n");
  EXPECT_THROW(expert_counts_text({{1, 2}, {1}}), Error);
}

TEST(ExpertCounts, RefusesWhatIsNone) {
  const auto error = [](const std::string& text) {
    return test::error_of(ErrorCode::kBadInput, [&] { parse(text); });
  };
  for (const char* text :
       {"", "7", "[]", "{", R"({"experts": 4})", R"({"experts": 4, "layers": 3})",
        R"({"experts": 4, "layers": [[1, 2, 3, 4], [1, 2)"})
    EXPECT_TRUE(test::says(error(text), "counts.json: no counts of experts")) << text;
  EXPECT_EQ(error(R"({"experts": 4, "layers": [[1, 2, 3, 4]]})"),
            "counts.json: counts of 1 layers, the model has 2 of 4 experts");
  EXPECT_EQ(error(R"({"experts": 5, "layers": [[], []]})"),
            "counts.json: counts of 2 layers, the model has 2 of 4 experts");
  EXPECT_EQ(error(R"({"experts": 4, "layers": [[1, 2, 3], [1, 2, 3, 4]]})"),
            "counts.json: want 4 counts in each layer");
  EXPECT_EQ(error(R"({"experts": 4, "layers": [[1, -2, 3, 4], [1, 2, 3, 4]]})"),
            "counts.json: -2 is not a count of uses");
  EXPECT_EQ(error(R"({"experts": 4, "layers": [[1, 2.5, 3, 4], [1, 2, 3, 4]]})"),
            "counts.json: 2.5 is not a count of uses");
}

}  // namespace
}  // namespace dsv4
