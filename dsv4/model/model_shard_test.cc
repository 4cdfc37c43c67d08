// The rows that ranks own: together they are the whole of every tensor, once.

#include <gtest/gtest.h>

#include "dsv4/base/error.h"
#include "dsv4/comm/communicator.h"
#include "dsv4/model/dry_run.h"
#include "dsv4/model/model.h"
#include "dsv4/model/released.h"
#include "dsv4/model/tensor_list.h"

namespace dsv4 {
namespace {

std::shared_ptr<const ModelSpec> flash_spec() {
  const ModelConfig config = released_config("flash");
  std::map<std::string, TensorMeta> tensors;
  for (const NamedTensor& tensor : official_tensor_list(config, false))
    tensors.emplace(tensor.name, tensor.meta);
  return std::make_shared<const ModelSpec>(config, Checkpoint::shapes("flash", tensors));
}

std::vector<ConstTensorView> tensors_of(ModelShard& shard) {
  std::vector<ConstTensorView> views;
  shard.for_each_tensor([&](const ConstTensorView& view) { views.push_back(view); });
  return views;
}

// A cut tensor lies in ranks one after the other, without gaps; any other is whole on every rank.
// RoPE tables, which come first, are made by each shard.
TEST(ModelShard, RanksOwnEveryRowOnce) {
  constexpr size_t kRopeTables = 2;
  const auto spec = flash_spec();
  ModelShard whole(spec);
  const std::vector<ConstTensorView> all = tensors_of(whole);
  for (const int world : {2, 3, 8}) {
    std::vector<std::vector<ConstTensorView>> ranks;
    for (int rank = 0; rank < world; ++rank) {
      ModelShard shard(spec, {rank, world});
      ranks.push_back(tensors_of(shard));
      ASSERT_EQ(ranks.back().size(), all.size());
    }
    int cut = 0;
    for (size_t i = kRopeTables; i < all.size(); ++i) {
      const bool is_cut = ranks[0][i].bytes() != all[i].bytes();
      cut += is_cut ? 1 : 0;
      const std::byte* next = all[i].data;
      for (const std::vector<ConstTensorView>& rank : ranks) {
        ASSERT_EQ(rank[i].data, next) << to_string(all[i]) << " of " << world;
        if (is_cut) next += rank[i].bytes();
      }
      if (is_cut) {
        ASSERT_EQ(next, all[i].data + all[i].bytes()) << to_string(all[i]);
      }
    }
    EXPECT_GT(cut, 43 * 256 * 3) << "the experts are cut";
  }
}

// docs/spec/several-gpus.md 1.1: Flash with FP4 experts on two and four ranks, GiB of weights each.
TEST(ModelShard, BytesOfARank) {
  const auto spec = flash_spec();
  for (const auto& [world, gib] : {std::pair(2, 73.3), std::pair(4, 37.2), std::pair(8, 19.2)}) {
    ModelShard shard(spec, {0, world});
    int64_t bytes = 0;
    for (const ConstTensorView& view : tensors_of(shard)) bytes += view.bytes();
    EXPECT_NEAR(static_cast<double>(bytes) / (1 << 30), gib, 0.1) << world;
  }
}

// Without the others a rank has no complete values: a step needs a communicator of this very rank.
TEST(ModelShard, ARankOfSeveralWantsItsCommunicator) {
  const ModelShard shard(flash_spec(), {1, 2});
  Scratch scratch = Scratch::counting();
  const StepExtents extents = decode_step(shard.cache_groups(), 1, 1);
  Step step =
      make_step({}, shard.config(), shard.cache_groups(), {}, extents, StepLists(scratch), scratch);
  EXPECT_THROW(shard.forward(step, {}, {}), Error);
  Single other({0, 2});
  step.ranks = &other;
  EXPECT_THROW(shard.forward(step, {}, {}), Error);
  EXPECT_THROW(ModelShard(flash_spec(), {2, 2}), Error);
}

TEST(ModelShard, RankZeroLeadsAllOthersOfItsWorld) {
  const auto spec = flash_spec();
  EXPECT_TRUE(ModelShard::of_ranks(spec, 1).others().empty());
  const ModelShard three = ModelShard::of_ranks(spec, 3);
  EXPECT_EQ(three.id(), (ShardId{0, 3}));
  ASSERT_EQ(three.others().size(), 2u);
  EXPECT_EQ(three.others()[1]->id(), (ShardId{2, 3}));
  ModelShard first(spec, {0, 3});
  EXPECT_THROW(first.lead({three.others()[0]}), Error) << "rank 2 is missing";
  EXPECT_THROW(first.lead({three.others()[1], three.others()[0]}), Error) << "out of order";
}

}  // namespace
}  // namespace dsv4
