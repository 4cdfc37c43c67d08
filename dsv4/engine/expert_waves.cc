#include "dsv4/engine/expert_waves.h"

#include <algorithm>

#include "dsv4/base/bits.h"
#include "dsv4/base/error.h"

namespace dsv4 {

std::span<const CopyPiece> WavePlan::of_wave(int64_t wave) const {
  const auto index = static_cast<size_t>(wave);
  const size_t begin = index == 0 ? 0 : ends[index - 1];
  return std::span(copies).subspan(begin, ends[index] - begin);
}

namespace {

// Adds the waves of a layer. place_of: [e] of its experts
void add_layer(const ExpertStore& store, int64_t layer, std::span<const int32_t> place_of,
               WavePlan& plan) {
  const ExpertPlaces& places = store.places();
  // What a step left in a transient place may have been overwritten.
  const auto has_place = [&](int32_t place) {
    return place != experts_fetch_kernel::kHome && place < places.kept(layer);
  };
  const int64_t missing = places.experts - std::ranges::count_if(place_of, has_place);
  DSV4_CHECK(missing == 0 || places.half > 0, "no transient places for {} experts of layer {}",
             missing, layer);
  const int64_t waves = missing == 0 ? 1 : ceil_div(missing, places.half);
  const int64_t of_wave = ceil_div(missing, waves),
                bytes = places.place_bytes[static_cast<size_t>(layer)];
  const TensorView transient = store.transient();
  int64_t turn = 0, copied = 0;  // of the turn
  for (int64_t e = 0; e < places.experts; ++e) {
    const int32_t place = place_of[static_cast<size_t>(e)];
    std::byte* at = nullptr;
    if (has_place(place)) {
      at = store.kept_place(layer, place);
    } else {
      if (copied == of_wave) plan.ends.push_back(plan.copies.size()), ++turn, copied = 0;
      const int64_t first = plan.waves() % 2 * places.half;
      at = transient.data + (first + copied++) * transient.dim(1);
      plan.copies.push_back({at, store.home(layer, e), bytes});
      plan.bytes += bytes;
    }
    plan.addresses.push_back(reinterpret_cast<int64_t>(at));
    plan.turn_of.push_back(static_cast<int32_t>(turn));
  }
  plan.ends.push_back(plan.copies.size());
  plan.first_wave.push_back(plan.waves());
}

}  // namespace

WavePlan plan_waves(const ExpertStore& store, std::span<const int32_t> place_of) {
  const ExpertPlaces& places = store.places();
  DSV4_CHECK(std::ssize(place_of) == places.all(), "places of {} of {} experts", place_of.size(),
             places.all());
  const auto e = static_cast<size_t>(places.experts);
  WavePlan plan;
  plan.first_wave.push_back(0);
  for (int64_t l = 0; l < places.layers(); ++l)
    add_layer(store, l, place_of.subspan(static_cast<size_t>(l) * e, e), plan);
  return plan;
}

}  // namespace dsv4
