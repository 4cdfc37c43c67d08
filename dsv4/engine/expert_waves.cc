#include "dsv4/engine/expert_waves.h"

#include "dsv4/base/error.h"

namespace dsv4 {

std::span<const CopyPiece> WavePlan::of_layer(int64_t layer) const {
  const auto index = static_cast<size_t>(layer);
  const size_t begin = index == 0 ? 0 : ends[index - 1];
  return std::span(copies).subspan(begin, ends[index] - begin);
}

WavePlan plan_waves(const ExpertStore& store, std::span<const int32_t> place_of) {
  const ExpertPlaces& places = store.places();
  DSV4_CHECK(std::ssize(place_of) == places.all(), "places of {} of {} experts", place_of.size(),
             places.all());
  WavePlan plan;
  for (int64_t l = 0; l < places.layers(); ++l) {
    const TensorView transient = store.transient();
    const int64_t bytes = places.place_bytes[static_cast<size_t>(l)];
    int64_t next = l % 2 * places.half;
    const int64_t end = next + places.half;
    for (int64_t e = 0; e < places.experts; ++e) {
      const int32_t place = place_of[static_cast<size_t>(l * places.experts + e)];
      std::byte* at = store.home(l, e);
      // What a step left in a transient place may have been overwritten.
      if (place != experts_fetch_kernel::kHome && place < places.kept(l)) {
        at = store.kept_place(l, place);
      } else if (next < end) {
        std::byte* const to = transient.data + next++ * transient.dim(1);
        plan.copies.push_back({to, at, bytes});
        plan.bytes += bytes;
        at = to;
      }
      plan.addresses.push_back(reinterpret_cast<int64_t>(at));
    }
    plan.ends.push_back(plan.copies.size());
  }
  return plan;
}

}  // namespace dsv4
