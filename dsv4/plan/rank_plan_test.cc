// The plan of ranks against what ranks take: the demo model, loaded and run on so many ranks.

#include "dsv4/plan/rank_plan.h"

#include <gtest/gtest.h>

#include <map>

#include "dsv4/convert/stored_tensors.h"
#include "dsv4/engine/device_weights.h"
#include "dsv4/engine/draft_head.h"
#include "dsv4/engine/executor.h"
#include "dsv4/engine/rank_memories.h"
#include "dsv4/model/released.h"

namespace dsv4 {
namespace {

constexpr const char* kDemo = "models/demo";  // tests run in the repository root
constexpr auto kSliced = ExpertsPlacement::kSliced, kWhole = ExpertsPlacement::kWhole;

ConvertList list_of(const Model& model, bool drafter) {
  StoredTensors tensors = stored_tensors(model.checkpoint());
  if (!drafter) drop_drafter(tensors);
  return convert_list(tensors, {}, model.config().o_groups);
}

TEST(RankPlan, IsWhatRanksOfTheDemoTake) {
  const Model one = Model::load(kDemo);
  const ConvertList lists[] = {list_of(one, false), list_of(one, true)};
  for (const Numerics numerics : {Numerics::kOfficial, Numerics::kExact}) {
    PlanRequest request{.numerics = numerics, .context = 300, .sequences = 2, .batch_tokens = 64};
    for (const auto& [world, placement, mtp] : {std::tuple(2, kSliced, false),
                                                {3, kSliced, true},
                                                {5, kSliced, false},
                                                {6, kSliced, false},
                                                {7, kSliced, true},
                                                {2, kWhole, true},
                                                {3, kWhole, false},
                                                {7, kWhole, false}}) {
      request.placement = placement, request.drafter = mtp;
      SCOPED_TRACE(fmt::format("{} ranks, {}, {}", world, name(numerics), name(placement)));
      const std::vector<RankPlan> plans = plan_ranks(one.config(), lists[mtp], request, world);
      ASSERT_EQ(std::ssize(plans), world);
      const DrafterKind drafter = mtp ? DrafterKind::kMtp : DrafterKind::kNone;
      const Model model = Model::load(kDemo, world, placement, drafter);
      Executor executor(model, {.numerics = numerics}, cache_limits(model.config(), request));
      const auto& memories = dynamic_cast<const RankMemories&>(executor.runner().memory());
      EXPECT_EQ(executor.scratch().reserved_bytes(), plans[0].scratch_bytes);
      for (const RankPlan& plan : plans) {
        ModelShard shard(model.shared_spec(), plan.id, drafter);
        EXPECT_EQ(placed_bytes(place_tensors(shard)), plan.weights_bytes) << plan.id.rank;
        EXPECT_EQ(memories.bytes(), plan.cache_bytes + plan.guesses_bytes);
        EXPECT_EQ(plan.guesses_bytes > 0, mtp);
        EXPECT_EQ(plan.draft_head_bytes, mtp ? DraftHead::bytes(shard) : 0);
      }
    }
  }
}

// The MTP block of Flash is divided as a layer is; e_proj and h_proj, in FP8 with their scales, are
// whole on every rank, and a token brings half a row of the embedding more than without.
TEST(RankPlan, AnMtpBlock) {
  const ModelConfig config = released_config("flash");
  const auto list_with = [&](bool drafter) {
    return convert_list(stored_tensors(official_tensor_list(config, drafter)), {}, config.o_groups);
  };
  const ConvertList plain = list_with(false), with = list_with(true);
  const auto a = plan_ranks(config, plain, {.context = 4096}, 2),
             b = plan_ranks(config, with, {.context = 4096, .drafter = true}, 2);
  const RankPlan one = plan_ranks(config, with, {.context = 4096, .drafter = true}, 1).front(),
                 bare = plan_ranks(config, plain, {.context = 4096}, 1).front();
  const int64_t block = one.weights_bytes - bare.weights_bytes;
  for (size_t rank = 0; rank < 2; ++rank) {
    const int64_t share = b[rank].weights_bytes - a[rank].weights_bytes;
    EXPECT_LT(share, block * 0.52);
    EXPECT_GT(share, block / 2 + 2 * 4096 * 4096 / 2);
    EXPECT_EQ(b[rank].received_bytes_per_token - a[rank].received_bytes_per_token, 4096 * 2 / 2);
    EXPECT_GT(b[rank].cache_bytes, a[rank].cache_bytes);
    EXPECT_GT(b[rank].guesses_bytes, 0);
    EXPECT_NEAR(static_cast<double>(b[rank].draft_head_bytes), 129280.0 * 4096 / 32 * 17 / 2, 1e3);
  }
  const PlanRequest request{.context = 4096, .drafter = true};
  const auto planned = static_cast<double>(plan_memory(config, with, request).rank_weights(2));
  EXPECT_NEAR(planned, static_cast<double>(b[1].weights_bytes), 0.002 * planned);
}

// Shares add up: what ranks have for themselves, and once what all of them have, is the model.
TEST(RankPlan, SharesAndCopiesAreTheModel) {
  const std::map<std::string, std::vector<std::pair<int, ExpertsPlacement>>> divided = {
      {"flash",
       {{2, kSliced},
        {3, kSliced},
        {5, kSliced},
        {6, kSliced},
        {7, kSliced},
        {2, kWhole},
        {3, kWhole}}},
      {"pro", {{3, kSliced}, {4, kSliced}, {5, kSliced}, {6, kSliced}, {7, kWhole}, {8, kSliced}}}};
  for (const auto& [release, cases] : divided) {
    const ModelConfig config = released_config(release);
    const ConvertList list =
        convert_list(stored_tensors(official_tensor_list(config, false)), {}, config.o_groups);
    const RankPlan whole = plan_ranks(config, list, {.context = 4096}, 1).front();
    for (const auto& [world, placement] : cases) {
      SCOPED_TRACE(fmt::format("{}, {} ranks, {}", release, world, name(placement)));
      int64_t own = 0, copies = -1;
      for (const RankPlan& rank :
           plan_ranks(config, list, {.context = 4096, .placement = placement}, world)) {
        own += rank.own_bytes;
        // Tensors begin at multiples of 256 bytes; the largest of the model are not far from them.
        const int64_t shared = rank.weights_bytes - rank.own_bytes;
        if (copies >= 0) {
          EXPECT_NEAR(static_cast<double>(shared), static_cast<double>(copies), 1e6);
        }
        copies = shared;
      }
      const auto all = static_cast<double>(whole.weights_bytes);
      EXPECT_NEAR(static_cast<double>(own + copies), all, 1e6);
    }
  }
}

// Units do not divide by five or six, so ranks have shares of two sizes, and room is what the
// fullest takes: of the experts, nearly all of a model, one unit more than the emptiest (Flash has
// 16 of w1 and w3 and 32 of w2, Pro 24 and 56).
TEST(RankPlan, TheFullestOfUnevenShares) {
  const struct {
    const char* release;
    int world;
    double least, most;  // of the routed experts
  } rows[] = {{"flash", 5, (2 * 3. / 16 + 6. / 32) / 3, (2 * 4. / 16 + 7. / 32) / 3},
              {"pro", 3, (2 * 8. / 24 + 18. / 56) / 3, (2 * 8. / 24 + 19. / 56) / 3},
              {"pro", 5, (2 * 4. / 24 + 11. / 56) / 3, (2 * 5. / 24 + 12. / 56) / 3},
              {"pro", 6, (2 * 4. / 24 + 9. / 56) / 3, (2 * 4. / 24 + 10. / 56) / 3}};
  for (const auto& row : rows) {
    SCOPED_TRACE(fmt::format("{}, {} ranks", row.release, row.world));
    const ModelConfig config = released_config(row.release);
    const ConvertList list =
        convert_list(stored_tensors(official_tensor_list(config, false)), {}, config.o_groups);
    int64_t least = INT64_MAX, most = 0;
    for (const RankPlan& rank : plan_ranks(config, list, {.context = 4096}, row.world))
      least = std::min(least, rank.weights_bytes), most = std::max(most, rank.weights_bytes);
    const MemoryPlan plan = plan_memory(config, list, {.context = 4096});
    const auto planned = static_cast<double>(plan.rank_weights(row.world));
    EXPECT_NEAR(planned, static_cast<double>(most), 0.002 * planned);
    int64_t experts = 0;
    for (const OutputItem& item : list.items)
      if (item.name.find(".ffn.experts.") != std::string::npos) experts += item.bytes();
    EXPECT_GT(static_cast<double>(least), row.least * static_cast<double>(experts));
    EXPECT_GT(static_cast<double>(most), row.most * static_cast<double>(experts));
    EXPECT_LT(static_cast<double>(most), 1.15 * row.most * static_cast<double>(experts));
  }
}

// docs/spec/several-gpus.md 2.3 has 39,088 bytes for a token and layer of Flash with codes for u
// and h; in the dtype of activations they are twice as many without their scales. A rank receives
// what the others own, and once for a token a row of the embedding.
TEST(RankPlan, BytesThatARankReceives) {
  const ModelConfig config = released_config("flash");
  const ConvertList list =
      convert_list(stored_tensors(official_tensor_list(config, false)), {}, config.o_groups);
  const int64_t u = 8192 * 2, y = 4096 * 2, h = 7 * 2048 * 2, sum = 4096 * 4, embedding = 4096 * 2;
  // In a prompt also what the 21 indexers pick for three of four tokens, and Q8 of u.
  const int64_t picks = 21 * 512 * 4 * 3 / 4, codes = 43 * (8192 + 64 - u) * 3 / 4;
  for (const RankPlan& rank : plan_ranks(config, list, {.context = 4096}, 4)) {
    EXPECT_EQ(rank.received_bytes_per_token, 43 * (u + y + h + sum) * 3 / 4 + embedding);
    EXPECT_EQ(rank.received_bytes_per_prompt_token, rank.received_bytes_per_token + picks + codes);
  }
  // Whole experts: rows of six experts, where one in four is the rank's own, and h of the shared.
  const int64_t rows = 6 * 4096 * 2, shared_h = 2048 * 2;
  for (const RankPlan& rank : plan_ranks(config, list, {.context = 4096, .placement = kWhole}, 4))
    EXPECT_EQ(rank.received_bytes_per_token, 43 * (u + y + rows + shared_h) * 3 / 4 + embedding);
}

// A third of 256 experts is 85 or 86 of them, each of 13.4 MB; slices have 5 or 6 of 16 blocks.
TEST(RankPlan, UnevenSharesOfWholeExperts) {
  const ModelConfig config = released_config("flash");
  const ConvertList list =
      convert_list(stored_tensors(official_tensor_list(config, false)), {}, config.o_groups);
  const auto spread = [&](ExpertsPlacement placement) {
    int64_t least = INT64_MAX, most = 0;
    for (const RankPlan& rank :
         plan_ranks(config, list, {.context = 4096, .placement = placement}, 3))
      least = std::min(least, rank.weights_bytes), most = std::max(most, rank.weights_bytes);
    const PlanRequest request{.context = 4096, .placement = placement};
    const auto planned = static_cast<double>(plan_memory(config, list, request).rank_weights(3));
    EXPECT_NEAR(planned, static_cast<double>(most), 0.002 * planned) << name(placement);
    return most - least;
  };
  EXPECT_LT(spread(kWhole) * 4, spread(kSliced));
}

}  // namespace
}  // namespace dsv4
