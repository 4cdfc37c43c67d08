#include "dsv4/engine/expert_waves.h"

#include <gtest/gtest.h>

#include <cstring>

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

// Prompts between decode steps. The copies of a layer run as early as they may: when the layer two
// before has been read.
void check_waves(const ExpertPlaces& places) {
  Scene scene(places);
  Rng rng(7);
  for (int round = 0; round < 4; ++round) {
    ASSERT_NO_FATAL_FAILURE(scene.decode(rng, 10));
    std::vector<int32_t> place_of(static_cast<size_t>(places.all()));
    scene.store.read_places(place_of);
    const WavePlan plan = plan_waves(scene.store, place_of);
    copy(plan.of_layer(0)), copy(plan.of_layer(1));
    int64_t at_home = 0;
    for (int64_t l = 0; l < places.layers(); ++l) {
      const int64_t* const addresses = plan.addresses.data() + l * kExperts;
      ASSERT_EQ(scene.images.broken(l, addresses), -1) << "layer " << l << " round " << round;
      for (int64_t e = 0; e < kExperts; ++e)
        at_home += addresses[e] == reinterpret_cast<int64_t>(scene.store.home(l, e)) ? 1 : 0;
      EXPECT_LE(std::ssize(plan.of_layer(l)), places.half);
      if (l + 2 < places.layers()) copy(plan.of_layer(l + 2));
    }
    // As many as can be are streamed: the others have a place, or found none left.
    EXPECT_EQ(std::ssize(plan.copies) + at_home + places.resident(), places.all());
    int64_t room = 0;
    for (int64_t l = 0; l < places.layers(); ++l)
      room += std::min(places.half, places.experts - places.kept(l));
    EXPECT_EQ(std::ssize(plan.copies), room);
    int64_t bytes = 0;
    for (const CopyPiece& piece : plan.copies) bytes += piece.bytes;
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
