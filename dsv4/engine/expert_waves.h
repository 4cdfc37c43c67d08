// The experts of a store streamed past the steps of prompts: while a layer is computed, the copy
// engine brings the next one's.
//
//   main stream   attention of l | experts of l, from slots, half l % 2, home | attention of l + 1
//   copy stream   .. layer l + 1 -> half (l + 1) % 2, once layer l - 1 has been read ..
//
// A layer's experts without a place go to its half of the transient places, in the order of their
// ids; those that find no room there are read at home. Slots and their state stay as they are, so a
// prompt costs the decoding sequences no experts. The same kernels read the same bytes as in a step
// that fetches.

#pragma once

#include <memory>
#include <span>
#include <vector>

#include "dsv4/engine/expert_store.h"
#include "dsv4/model/step.h"
#include "dsv4/tensor/copy_piece.h"

namespace dsv4 {

class Device;

// Steps of more tokens that are not captured read whole layers. Fewer tokens choose fewer than
// about three quarters of 256 experts.
inline constexpr int64_t kMostFetchedTokens = 64;

struct WavePlan {
  std::vector<int64_t> addresses;  // [layers, e] of the experts while their layer is computed
  std::vector<CopyPiece> copies;   // of all layers, in their order
  std::vector<size_t> ends;        // [layers]: behind those of the layer
  int64_t bytes = 0;               // of the copies

  std::span<const CopyPiece> of_layer(int64_t layer) const;
};
// place_of: [layers, e], as ExpertStore::read_places() gives them
WavePlan plan_waves(const ExpertStore& store, std::span<const int32_t> place_of);

// For the steps of one stream. CUDA builds.
class StoreWaves : public ExpertWaves {
 public:
  // The plan is made in the first step after this, when the device has done its steps before.
  virtual void places_changed() = 0;
  virtual void begin_step() = 0;
};
// Counts in the store what each step streams.
std::unique_ptr<StoreWaves> make_store_waves(Device& device, ExpertStore& store);

}  // namespace dsv4
