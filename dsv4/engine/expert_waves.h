// The experts of a store streamed past the steps of prompts, in waves that fill one half of the
// transient places each: while one is computed, the copy engine brings the next one.
//
//   main stream   attention | wave w of the layer's experts, from slots and half w % 2 | wave w + 1
//   copy stream   .. wave w + 1 -> half (w + 1) % 2, once wave w - 1 has been read ..
//
// Waves are counted through all layers. A layer has one, or several where half of the transient
// places does not hold all of its experts that have no other place; these are of almost equal size,
// in the order of ids, and each is a turn of the layer (ops/parts/experts/expert_turns.h). Slots
// and their state stay as they are, so a prompt costs the decoding sequences no experts. The same
// kernels read the same bytes as in a step that fetches.

#pragma once

#include <memory>
#include <span>
#include <vector>

#include "dsv4/engine/expert_store.h"
#include "dsv4/model/step.h"
#include "dsv4/tensor/copy_piece.h"

namespace dsv4 {

class Device;
class FetchBeside;

// Steps of more tokens that are not captured read whole layers. Fewer tokens choose fewer than
// about three quarters of 256 experts.
inline constexpr int64_t kMostFetchedTokens = 64;

struct WavePlan {
  std::vector<int64_t> addresses;   // [layers, e] of the experts while their wave is computed
  std::vector<int32_t> turn_of;     // [layers, e]: the expert's wave, from the first of its layer
  std::vector<int64_t> first_wave;  // [layers + 1]: of each layer, and the end
  std::vector<CopyPiece> copies;    // of all waves, in their order
  std::vector<size_t> ends;         // [waves]: behind those of the wave
  int64_t bytes = 0;                // of the copies

  int64_t waves() const { return std::ssize(ends); }
  std::span<const CopyPiece> of_wave(int64_t wave) const;
};
// place_of: [layers, e], as ExpertStore::read_places() gives them
WavePlan plan_waves(const ExpertStore& store, std::span<const int32_t> place_of);

// Decode steps of so many tokens or more compute the experts that are in their places while the
// others come; with fewer, the launches that it takes cost as much as it hides.
inline constexpr int64_t kLeastBesideTokens = 4;

// For the steps of one stream. CUDA builds.
std::unique_ptr<FetchBeside> make_store_fetch(Device& device, const ExpertStore& store);

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
