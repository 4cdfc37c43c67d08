// Compression ratios come from the config: a model with CSA of 8 and HCA of 64 tokens per
// entry runs like the released ones; no code depends on the released ratios.

#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "tests/harness/random_model.h"
#include "tests/harness/tiny_model.h"
#include "tests/model/golden_files.h"

namespace dsv4 {
namespace {

constexpr int64_t kTokens = 300;

ModelConfig config_of(int csa_ratio, int hca_ratio) {
  auto json = nlohmann::json::parse(test::tiny_config_json());
  json.erase("compress_ratios");
  json["layer_types"] = {"sliding_attention", "compressed_sparse_attention",
                         "heavily_compressed_attention", "compressed_sparse_attention"};
  json["compress_rates"] = {{"compressed_sparse_attention", csa_ratio},
                            {"heavily_compressed_attention", hca_ratio}};
  json["index_topk"] = 8;  // the indexer selects from 9 entries on
  return parse_config(json.dump(), "ratios of the test");
}

std::vector<int32_t> random_ids(int64_t vocab, uint64_t seed) {
  Rng rng(seed);
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < kTokens; ++i) ids.push_back(static_cast<int32_t>(rng.below(vocab)));
  return ids;
}

class OtherRatios : public testing::TestWithParam<Numerics> {};

TEST_P(OtherRatios, AnyChunkGivesTheSameBits) {
  for (const auto& [csa, hca] : {std::pair(8, 64), std::pair(3, 20)}) {
    const Model model = test::random_model(config_of(csa, hca), 5);
    const std::vector<int32_t> ids = random_ids(model.config().vocab_size, 1);
    const Buffer whole = test::all_logits(model, GetParam(), ids, kTokens);
    for (int64_t i = 0; i < whole.view().numel(); ++i)
      ASSERT_TRUE(std::isfinite(whole.as<float>()[i])) << i;
    for (const int64_t chunk : {1, 7, 64, 129}) {
      EXPECT_TRUE(test::same_bits(whole, test::all_logits(model, GetParam(), ids, chunk)))
          << "ratios " << csa << " and " << hca << " in chunks of " << chunk;
    }
  }
}

// Only compressed entries connect the last token with one far before its window.
TEST_P(OtherRatios, DistantTokensAffectTheLogits) {
  const Model model = test::random_model(config_of(8, 64), 5);
  const int64_t reach = model.config().num_layers * model.config().window;
  ASSERT_LT(reach, kTokens - 64);
  std::vector<int32_t> ids = random_ids(model.config().vocab_size, 1);
  const Buffer before = test::all_logits(model, GetParam(), ids, kTokens);
  ids[3] = (ids[3] + 1) % static_cast<int32_t>(model.config().vocab_size);
  const Buffer after = test::all_logits(model, GetParam(), ids, kTokens);
  EXPECT_FALSE(test::same_bits(before.view().slice(0, kTokens - 1, kTokens),
                               after.view().slice(0, kTokens - 1, kTokens)));
}

INSTANTIATE_TEST_SUITE_P(Modes, OtherRatios, testing::Values(Numerics::kOfficial, Numerics::kExact),
                         [](const auto& mode) { return std::string(name(mode.param)); });

TEST(OtherRatiosConfig, GroupsFollowTheConfig) {
  const std::vector<CacheGroupSpec> groups = cache_groups(config_of(8, 64));
  ASSERT_EQ(groups.size(), 3u);
  EXPECT_EQ(groups[1].ratio, 8);
  EXPECT_TRUE(groups[1].has_index);
  EXPECT_EQ(groups[1].page_entries, 32);
  EXPECT_EQ(groups[2].ratio, 64);
  EXPECT_FALSE(groups[2].has_index);
  EXPECT_EQ(groups[2].page_entries, 4);
}

}  // namespace
}  // namespace dsv4
