// Events of random lives of an index and of a store, replayed: they add up to what is there.

#include "dsv4/cache/block_events.h"

#include <gtest/gtest.h>

#include <mutex>
#include <set>

#include "dsv4/base/rng.h"
#include "dsv4/cache/prefix_index.h"
#include "dsv4/cache/unit_store.h"
#include "tests/harness/errors.h"
#include "tests/harness/temp_folder.h"

namespace dsv4 {
namespace {

using Blocks = std::set<uint64_t>;

// What a router knows. Its rules are those of the events: a block comes after its parent, and none
// comes or goes twice.
class Router {
 public:
  void on(const BlockEvent& event) {
    const std::lock_guard lock(mutex_);
    ++events_;
    if (event.kind == BlockEvent::Kind::kCleared) {
      for (Blocks& blocks : blocks_) blocks.clear();
      return;
    }
    Blocks& blocks = blocks_[static_cast<size_t>(event.tier)];
    EXPECT_FALSE(event.blocks.empty());
    for (const uint64_t block : event.blocks) {
      if (event.kind == BlockEvent::Kind::kStored) {
        EXPECT_TRUE(blocks.insert(block).second) << "stored twice";
      } else {
        EXPECT_EQ(blocks.erase(block), 1u) << "removed without being there";
      }
    }
    if (event.kind != BlockEvent::Kind::kStored) return;
    EXPECT_EQ(event.ids.size(), event.blocks.size() * static_cast<size_t>(event.step));
    std::optional<uint64_t> parent = event.parent;
    for (size_t i = 0; i < event.blocks.size(); ++i) {
      const auto at = event.ids.begin() + static_cast<std::ptrdiff_t>(i) * event.step;
      const std::vector<int32_t> ids(at, at + event.step);
      const auto [known, is_new] = texts_.try_emplace(event.blocks[i], parent, ids);
      EXPECT_TRUE(is_new || known->second == std::pair(parent, ids)) << "one hash, two texts";
      parent = event.blocks[i];
    }
  }
  BlockEvents sink() {
    return [this](const BlockEvent& event) { on(event); };
  }
  Blocks blocks(CacheTier tier) const {
    const std::lock_guard lock(mutex_);
    return blocks_[static_cast<size_t>(tier)];
  }
  size_t events() const {
    const std::lock_guard lock(mutex_);
    return events_;
  }

 private:
  mutable std::mutex mutex_;
  Blocks blocks_[kNumCacheTiers];
  std::map<uint64_t, std::pair<std::optional<uint64_t>, std::vector<int32_t>>> texts_;
  size_t events_ = 0;
};

Blocks set_of(const std::vector<uint64_t>& blocks) {
  return {blocks.begin(), blocks.end()};
}

// Few different steps, so that texts share beginnings.
std::vector<int32_t> random_text(Rng& rng, size_t step, size_t most_steps) {
  std::vector<int32_t> ids;
  const size_t steps = 1 + rng.bits() % most_steps;
  for (size_t i = 0; i < steps; ++i) {
    const auto first = static_cast<int32_t>(rng.bits() % 3);
    for (size_t j = 0; j < step; ++j) ids.push_back(first * 100 + static_cast<int32_t>(j));
  }
  return ids;
}

TEST(BlockLedger, PublishesTheFirstAndTheLast) {
  std::vector<BlockEvent> events;
  BlockLedger ledger(CacheTier::kRam, 2,
                     [&](BlockEvent event) { events.push_back(std::move(event)); });
  ledger.add(std::nullopt, std::vector<uint64_t>{1, 2, 3}, std::vector<int32_t>{1, 1, 2, 2, 3, 3});
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(events[0].parent, std::nullopt);
  // A block that is there already splits what is new.
  ledger.add(std::nullopt, std::vector<uint64_t>{1, 4, 2, 5},
             std::vector<int32_t>{1, 1, 4, 4, 2, 2, 5, 5});
  ASSERT_EQ(events.size(), 3u);
  EXPECT_EQ(events[1].blocks, std::vector<uint64_t>{4});
  EXPECT_EQ(events[1].parent, 1u);
  EXPECT_EQ(events[2].blocks, std::vector<uint64_t>{5});
  EXPECT_EQ(events[2].parent, 2u);
  EXPECT_EQ(events[2].ids, (std::vector<int32_t>{5, 5}));
  ledger.remove(std::vector<uint64_t>{1, 2});
  EXPECT_EQ(events.size(), 3u) << "both are still held";
  ledger.remove(std::vector<uint64_t>{1, 3});
  ASSERT_EQ(events.size(), 4u);
  EXPECT_EQ(events[3].blocks, (std::vector<uint64_t>{1, 3}));
  EXPECT_TRUE(test::says(
      test::error_of(ErrorCode::kInvalidArgument, [&] { ledger.remove(std::vector<uint64_t>{9}); }),
      "is not held"));
}

TEST(BlockEvents, ARandomLifeOfAnIndex) {
  constexpr int64_t kStep = 4;
  const Digest fingerprint = digest_of("model");
  for (uint64_t seed = 0; seed < 20; ++seed) {
    Rng rng(seed);
    Router router;
    PrefixIndex index(kStep);
    index.publish(router.sink(), fingerprint);
    std::set<int> live;
    for (int i = 0; i < 1000; ++i) {
      if (live.size() < 30 && rng.bits() % 2 == 0) {
        const char* salt = rng.bits() % 8 == 0 ? "somebody's" : "";
        if (!index.insert(salt, random_text(rng, kStep, 9), i)) live.insert(i);
      } else if (!live.empty()) {
        auto at = live.begin();
        std::advance(at, static_cast<std::ptrdiff_t>(rng.bits() % live.size()));
        index.erase(*at);
        live.erase(at);
      }
      if (i % 50 == 0) {
        ASSERT_EQ(router.blocks(CacheTier::kEngine), set_of(index.blocks(fingerprint)));
      }
    }
    // What a router answers is how far the index goes.
    for (int i = 0; i < 200; ++i) {
      const std::vector<int32_t> ids = random_text(rng, kStep, 9);
      PrefixChain chain(fingerprint, "", kStep);
      chain.extend(ids);
      const Blocks known = router.blocks(CacheTier::kEngine);
      int64_t common = 0;
      for (const PrefixKey& key : chain.keys()) {
        if (!known.contains(block_hash(key))) break;
        common += kStep;
      }
      EXPECT_EQ(common, index.find("", ids).common);
    }
    for (const int checkpoint : live) index.erase(checkpoint);
    EXPECT_TRUE(router.blocks(CacheTier::kEngine).empty());
    EXPECT_GT(router.events(), 300u);
  }
}

// Texts are kept, evicted from memory, written, read again after a restart, and dropped.
TEST(BlockEvents, ARandomLifeOfTheTiers) {
  constexpr int64_t kStep = 4, kBlockBytes = 4096;
  const test::TempFolder folder;
  const Digest fingerprint = digest_of("model");
  Router router;
  for (uint64_t life = 0; life < 4; ++life) {
    Rng rng(life + 100);
    if (life > 0) router.on({.kind = BlockEvent::Kind::kCleared});  // a new program begins empty
    UnitStoreOptions options{.ram_bytes = 40 * kBlockBytes,
                             .folder = folder.path(),
                             .disk_bytes = 60 * kBlockBytes,
                             .block_events = router.sink()};
    UnitStore store(options, {.step = kStep, .block_bytes = kBlockBytes, .checkpoint_bytes = 64},
                    fingerprint, host_memory());
    const auto same = [&] {
      for (const CacheTier tier : {CacheTier::kRam, CacheTier::kDisk})
        EXPECT_EQ(router.blocks(tier), set_of(store.blocks(tier))) << "life " << life;
    };
    for (int i = 0; i < 300; ++i) {
      const std::vector<int32_t> ids = random_text(rng, kStep, 7);
      const std::string salt = rng.bits() % 8 == 0 ? "somebody's" : "";
      PrefixChain chain(fingerprint, salt, kStep);
      chain.extend(ids);
      switch (rng.bits() % 5) {
        case 0:
        case 1:
          store.save(chain, ids, [](int64_t, const UnitPieces& pieces) {
            for (const auto& piece : pieces.blocks)
              std::fill(piece.begin(), piece.end(), std::byte{1});
          });
          break;
        case 2:
        case 3:
          if (const auto lease = store.find(chain, ids, 0))
            lease->wait_for(std::chrono::seconds(20));
          break;
        default:
          if (rng.bits() % 40 == 0) store.drop_all();
          if (rng.bits() % 10 == 0) store.drop_ram();
      }
      if (i % 20 == 0) {
        store.flush();
        same();
        store.check_invariants();
      }
    }
    store.flush();
    same();
  }
  EXPECT_GT(router.events(), 1000u);
}

}  // namespace
}  // namespace dsv4
