#include "dsv4/engine/expert_waves.h"

#include <gtest/gtest.h>

#include <cstring>

#include "dsv4/base/bits.h"
#include "dsv4/base/rng.h"
#include "dsv4/engine/stored_images_test.h"
#include "dsv4/ops/parts/experts_fetch/choices_test.h"

namespace dsv4 {
namespace {

constexpr int64_t kExperts = 64, kBytes = 256;

// A store on the host, filled with random images, after some decode steps.
struct Scene {
  ExpertStore store;
  test::StoredImages images;

  explicit Scene(const ExpertPlaces& places)
      : store(places, host_memory(), host_memory()), images(store) {}

  void decode(Rng& rng, int steps) {
    test::Choices choices(rng, kExperts, 0.8, 0.2);
    for (int i = 0; i < steps; ++i) {
      for (int64_t l = 0; l < store.places().layers(); ++l) {
        const std::vector<int32_t> ids = choices.step(4, 6);
        ExpertsFetchArgs args = store.layer(l);
        args.experts = {TensorMeta::contiguous(DType::kI32, {4, 6}),
                        reinterpret_cast<const std::byte*>(ids.data())};
        experts_fetch({}, args);
        ASSERT_EQ(images.broken(l, args.places.as<int64_t>()), -1)
            << "layer " << l << " step " << i;
      }
    }
  }
};

void copy(std::span<const CopyPiece> pieces) {
  for (const CopyPiece& piece : pieces)
    std::memcpy(piece.to, piece.from, static_cast<size_t>(piece.bytes));
}

// Prompts between decode steps. The copies of a wave run as early as they may: when the wave two
// before has been read.
void check_waves(const ExpertPlaces& places) {
  Scene scene(places);
  Rng rng(7);
  for (int round = 0; round < 4; ++round) {
    ASSERT_NO_FATAL_FAILURE(scene.decode(rng, 10));
    std::vector<int32_t> place_of(static_cast<size_t>(places.all()));
    scene.store.read_places(place_of);
    const WavePlan plan = plan_waves(scene.store, place_of);
    ASSERT_EQ(std::ssize(plan.first_wave), places.layers() + 1);
    for (int64_t w = 0; w < std::min<int64_t>(2, plan.waves()); ++w) copy(plan.of_wave(w));
    int64_t bytes = 0, seen = 0;
    for (int64_t l = 0; l < places.layers(); ++l) {
      const int64_t* const addresses = plan.addresses.data() + l * kExperts;
      const int64_t first = plan.first_wave[static_cast<size_t>(l)];
      const int64_t end = plan.first_wave[static_cast<size_t>(l + 1)];
      const int64_t missing = places.experts - places.kept(l);
      EXPECT_EQ(end - first, missing == 0 ? 1 : ceil_div(missing, places.half)) << l;
      for (int64_t w = first; w < end; ++w) {
        for (int64_t e = 0; e < kExperts; ++e) {
          if (plan.turn_of[static_cast<size_t>(l * kExperts + e)] != w - first) continue;
          ++seen;
          EXPECT_TRUE(scene.images.is_at(l, e, addresses[e]))
              << "layer " << l << " expert " << e << " round " << round;
        }
        EXPECT_LE(std::ssize(plan.of_wave(w)), places.half);
        for (const CopyPiece& piece : plan.of_wave(w)) bytes += piece.bytes;
        if (w + 2 < plan.waves()) copy(plan.of_wave(w + 2));
      }
    }
    EXPECT_EQ(seen, places.all());  // each in one turn of its layer
    EXPECT_EQ(std::ssize(plan.copies) + places.resident(), places.all());
    EXPECT_EQ(plan.bytes, bytes);
  }
}

TEST(ExpertWaves, EveryAddressHoldsItsExpertWhileItsLayerIsComputed) {
  constexpr int64_t kHost = 1 << 30;
  check_waves(plan_places({kBytes, kBytes, kBytes, kBytes, kBytes}, kExperts, 200 * kBytes, kHost));
  check_waves(plan_places({kBytes, 3 * kBytes, 2 * kBytes}, kExperts, 300 * kBytes, kHost));
  check_waves(plan_places({kBytes, kBytes, kBytes}, kExperts, 190 * kBytes, kHost));
  check_waves(plan_places({kBytes, kBytes, kBytes}, kExperts, 150 * kBytes, 120 * kBytes));
}

}  // namespace
}  // namespace dsv4
