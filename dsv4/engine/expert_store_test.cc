#include "dsv4/engine/expert_store.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <mutex>
#include <numeric>
#include <optional>
#include <set>

#include "dsv4/base/rng.h"
#include "dsv4/engine/stored_images_test.h"
#include "dsv4/ops/parts/experts_fetch/choices_test.h"
#include "tests/harness/errors.h"

namespace dsv4 {
namespace {

// Host memory that knows what is allocated, and whose n-th allocation fails.
class CountedMemory final : public Memory {
 public:
  explicit CountedMemory(int fails_at = -1) : left_(fails_at) {}
  std::byte* allocate(int64_t bytes) override {
    const std::lock_guard lock(mutex_);
    if (left_-- == 0) fail(ErrorCode::kResource, "no {} bytes more", bytes);
    std::byte* const data = host_memory().allocate(bytes);
    live_[data] = bytes;
    most_ = std::max(most_, bytes), sum_ += bytes;
    return data;
  }
  void release(std::byte* data) noexcept override {
    const std::lock_guard lock(mutex_);
    sum_ -= live_[data];
    live_.erase(data);
    host_memory().release(data);
  }
  void upload(std::byte* to, const std::byte* from, int64_t bytes) override {
    host_memory().upload(to, from, bytes);
  }
  void download(std::byte* to, const std::byte* from, int64_t bytes) override {
    host_memory().download(to, from, bytes);
  }
  int64_t bytes() const { return sum_; }
  int64_t most() const { return most_; }

 private:
  std::mutex mutex_;
  std::map<std::byte*, int64_t> live_;
  int64_t sum_ = 0, most_ = 0;
  int left_;
};

constexpr int64_t kExperts = 40;

ExpertPlaces some_places(int64_t homes = 1 << 20) {
  return plan_places({700, 256, 1000}, kExperts, 60 * 1024, homes * 256);
}

// A store whose experts have random bytes.
struct Filled {
  CountedMemory locked, device;
  ExpertStore store;
  test::StoredImages images;

  Filled(const ExpertPlaces& places, const ExpertOrder& order)
      : store(places, locked, device, order, 4096), images(store) {}
  int64_t broken(int64_t layer) const {
    return images.broken(layer, store.layer(layer).places.as<int64_t>());
  }
};

// A layer's step; ids: [tokens, 3]
void step_of(const ExpertStore& store, int64_t layer, const std::vector<int32_t>& ids) {
  ExpertsFetchArgs args = store.layer(layer);
  args.experts = {TensorMeta::contiguous(DType::kI32, {std::ssize(ids) / 3, 3}),
                  reinterpret_cast<const std::byte*>(ids.data())};
  experts_fetch({}, args);
}

// Layers of different sizes, which share the transient places, over many steps.
void check_steps(const ExpertPlaces& places, int steps = 300) {
  Rng rng(11);
  const ExpertOrder order = test::random_order(rng, places.layers(), kExperts);
  const Filled filled(places, order);
  const ExpertStore& store = filled.store;
  std::vector<test::Choices> choices;
  for (int64_t l = 0; l < places.layers(); ++l) choices.emplace_back(rng, kExperts, 0.9, 0.2);
  for (int64_t l = 0; l < places.layers(); ++l) ASSERT_EQ(filled.broken(l), -1) << "at the start";
  int64_t chosen = 0;
  std::vector<std::vector<int64_t>> totals(choices.size(), std::vector<int64_t>(kExperts));
  for (int step = 0; step < steps; ++step) {
    for (int64_t l = 0; l < places.layers(); ++l) {
      const int tokens = 1 + static_cast<int>(rng.below(8));
      const std::vector<int32_t> ids = choices[static_cast<size_t>(l)].step(tokens, 3);
      const std::set<int32_t> distinct(ids.begin(), ids.end());
      chosen += std::ssize(distinct);
      for (const int32_t e : distinct) ++totals[static_cast<size_t>(l)][static_cast<size_t>(e)];
      step_of(store, l, ids);
      ASSERT_EQ(filled.broken(l), -1) << "layer " << l << " step " << step;
      const auto* addresses = store.layer(l).places.as<int64_t>();
      for (int64_t i = 0; i < places.fixed[static_cast<size_t>(l)]; ++i) {
        const int32_t e = order[static_cast<size_t>(l)][static_cast<size_t>(i)];
        ASSERT_EQ(addresses[e], reinterpret_cast<int64_t>(store.kept_place(l, i)));
      }
    }
  }
  const ExpertStats stats = store.read_stats();
  const ExpertCounts counts = stats.sum();
  EXPECT_EQ(counts.hits + counts.misses(), chosen);
  EXPECT_EQ(counts.impossible, 0);
  EXPECT_EQ(store.read_totals(), totals);
  ASSERT_EQ(std::ssize(stats.layers), places.layers());
  int64_t bytes = 0;  // layers have different sizes
  for (size_t l = 0; l < stats.layers.size(); ++l) {
    EXPECT_EQ(stats.layers[l].hits + stats.layers[l].misses(),
              std::reduce(totals[l].begin(), totals[l].end()));
    bytes += stats.layers[l].misses() * places.place_bytes[l];
  }
  EXPECT_EQ(counts.link_bytes(), bytes);
  std::vector<int32_t> place_of(static_cast<size_t>(places.all()));
  store.read_places(place_of);
  for (int64_t l = 0; l < places.layers(); ++l) {
    const auto* at = store.layer(l).place_of.as<int32_t>();
    EXPECT_TRUE(std::equal(at, at + kExperts, place_of.begin() + l * kExperts));
  }
}

TEST(ExpertStore, EveryAddressHoldsItsExpert) {
  check_steps(some_places());
}
TEST(ExpertStore, FixedExpertsStay) {
  const ExpertPlaces places = some_places(250);
  ASSERT_GT(places.fixed[0], 0);
  check_steps(places);
}

// One place more than the least with which a store begins: one layer has two slots, the others one.
TEST(ExpertStore, LastsWithOneSlotAboveTheLeast) {
  const std::vector<int64_t> sizes{700, 256, 1000};
  constexpr int64_t kLeast = 768 + 256 + 1024 + 2 * 8 * 1024;
  EXPECT_THROW(plan_places(sizes, kExperts, kLeast - 1, 1 << 30), Error);
  const ExpertPlaces places = plan_places(sizes, kExperts, kLeast + 768, 1 << 30);
  ASSERT_EQ(places.slots, (std::vector<int64_t>{2, 1, 1}));
  check_steps(places, 20'000);  // of up to 24 experts: some find no place and are read at home
}

// The first experts of an order begin on the device, and no others.
TEST(ExpertStore, BeginsAsOrdered) {
  Rng rng(5);
  const ExpertPlaces places = some_places(250);
  const ExpertOrder order = test::random_order(rng, places.layers(), kExperts);
  const Filled filled(places, order);
  for (int64_t l = 0; l < places.layers(); ++l) {
    for (int64_t i = 0; i < kExperts; ++i) {
      const int32_t e = order[static_cast<size_t>(l)][static_cast<size_t>(i)];
      const std::byte* const kept = i < places.kept(l) ? filled.store.kept_place(l, i) : nullptr;
      EXPECT_EQ(filled.store.first_place(l, e), kept);
      EXPECT_EQ(filled.store.home(l, e) == nullptr, i < places.fixed[static_cast<size_t>(l)]);
    }
  }
}

// Bytes of the plan, and no more than the state beside them.
TEST(ExpertStore, TakesWhatThePlanSays) {
  const ExpertPlaces places = some_places(250);
  const Filled filled(places, {});
  EXPECT_EQ(filled.locked.bytes(), places.host_bytes());
  EXPECT_LE(filled.locked.most(), 4096);
  const int64_t state = places.layers() * (kExperts * (8 + 8 + 8 + 4 + 8) +
                                           (places.kept(0) + places.transient()) * 4 + 4 + 4 * 8);
  EXPECT_EQ(filled.device.bytes(), places.gpu_bytes() + state);
}

TEST(ExpertStore, SharedCopiesTakeNoMoreThanTheirLimit) {
  ExpertPlaces places = plan_places({512, 512, 512}, kExperts, 40 * 1024, 1 << 30);
  places.shared_host_bytes = 5 * 512 + 100;
  const Filled filled(places, {});
  EXPECT_EQ(filled.locked.bytes(), 5 * 512);
  std::set<const std::byte*> homes;
  for (int64_t l = 0; l < places.layers(); ++l)
    for (int64_t e = 0; e < kExperts; ++e) homes.insert(filled.store.home(l, e));
  EXPECT_EQ(homes.size(), 5u);
  EXPECT_FALSE(homes.contains(nullptr));
}

TEST(ExpertStore, CountsWhatPromptsStream) {
  Filled filled(some_places(), {});
  ExpertStore& store = filled.store;
  const ExpertStats before = store.read_stats();
  EXPECT_EQ(before.prompt_steps, 0);
  store.count_streamed(3000), store.count_streamed(40);
  const ExpertStats after = store.read_stats().since(before);
  EXPECT_EQ(after.prompt_steps, 2);
  EXPECT_EQ(after.prompt_bytes, 3040);
  EXPECT_EQ(after.sum().hits + after.sum().link_bytes(), 0);
  EXPECT_TRUE(after.any());
  EXPECT_FALSE(ExpertStats{}.any());
}

// Two models of one process take experts from the same memories, and each keeps its own.
TEST(ExpertStore, TwoStoresShareTheirMemories) {
  Rng rng(17);
  CountedMemory locked, device;
  const auto of_all = [&] { return locked.bytes() + device.bytes(); };
  const ExpertPlaces places[] = {some_places(), some_places(250)};
  const ExpertOrder order = test::random_order(rng, 3, kExperts);
  std::optional<ExpertStore> stores[2];
  std::optional<test::StoredImages> images[2];
  int64_t bytes[3] = {};  // before each store, and after both
  for (size_t i = 0; i < 2; ++i) {
    stores[i].emplace(places[i], locked, device, i == 0 ? ExpertOrder() : order, 4096);
    images[i].emplace(*stores[i], 3 + i);
    bytes[i + 1] = of_all();
  }
  EXPECT_EQ(locked.bytes(), places[0].host_bytes() + places[1].host_bytes());
  test::Choices choices(rng, kExperts, 0.9, 0.2);
  int64_t latest[2] = {};  // layer of each store: another one may have taken its transient places
  const auto broken = [&](size_t i) {
    return images[i]->broken(latest[i], stores[i]->layer(latest[i]).places.as<int64_t>());
  };
  for (int step = 0; step < 300; ++step) {
    const auto i = static_cast<size_t>(rng.below(2));
    latest[i] = rng.below(3);
    step_of(*stores[i], latest[i], choices.step(3, 3));
    for (size_t s = 0; s < 2; ++s)
      ASSERT_EQ(broken(s), -1) << "store " << s << " layer " << latest[s] << " step " << step;
  }
  EXPECT_GT(stores[0]->read_stats().sum().moves, 0);
  EXPECT_GT(stores[1]->read_stats().sum().moves, 0);
  stores[0].reset();
  EXPECT_EQ(of_all(), bytes[2] - bytes[1]);
  EXPECT_EQ(broken(1), -1);
  stores[1].reset();
  EXPECT_EQ(of_all(), 0);
}

TEST(ExpertStore, GivesBackWhatItLockedBeforeAFailure) {
  for (const int at : {0, 1, 7}) {
    CountedMemory locked(at), device;
    EXPECT_TRUE(
        test::says(test::error_of(ErrorCode::kResource,
                                  [&] { ExpertStore(some_places(), locked, device, {}, 4096); }),
                   "bytes more"));
    EXPECT_EQ(locked.bytes(), 0);
    EXPECT_EQ(device.bytes(), 0);
  }
}

TEST(ExpertStore, RefusesAnOrderThatIsNone) {
  CountedMemory locked, device;
  ExpertOrder twice(3);
  twice[1].assign(kExperts, 4);
  EXPECT_THROW(ExpertStore(some_places(), locked, device, twice), Error);
}

}  // namespace
}  // namespace dsv4
