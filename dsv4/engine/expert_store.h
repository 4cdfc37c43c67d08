// The experts of a model that has only some of them in device memory: their homes in page-locked
// host memory, their places on the device, and the state of every layer that experts_fetch keeps
// (docs/experts-in-host-memory.md).
//
//   homes      pieces of host memory of at most kHomePiece, whole experts in the order of layers
//   places     one block on the device: the layers' fixed places and slots, then the transient ones
//   state      [layers, ...] on the device; steps change it there, the host reads it when it must
//
// An expert's bytes, at home and in a place: its gate_up image, the down image right behind it, and
// up to 255 bytes of nothing. Whoever places the model fills home() and first_place() of each.

#pragma once

#include <span>
#include <vector>

#include "dsv4/engine/expert_places.h"
#include "dsv4/engine/expert_stats.h"
#include "dsv4/ops/parts/experts_fetch/experts_fetch.h"
#include "dsv4/tensor/buffer.h"

namespace dsv4 {

// [layer]: its experts, those first that begin in device memory. Empty: in the order of their ids.
using ExpertOrder = std::vector<std::vector<int32_t>>;

inline constexpr int64_t kHomePiece = int64_t{1} << 30;

class ExpertStore {
 public:
  // locked: memory that the device reads, page-locked; several threads allocate from it at a time.
  // Throws what the memories throw, before anything but memory is touched.
  ExpertStore(const ExpertPlaces& places, Memory& locked, Memory& device,
              const ExpertOrder& order = {}, int64_t piece_bytes = kHomePiece);

  const ExpertPlaces& places() const { return places_; }
  std::byte* home(int64_t layer, int64_t expert) const;         // null: a fixed expert
  std::byte* first_place(int64_t layer, int64_t expert) const;  // null: it begins at home only

  // What a step's layer fetches with; the step adds the choices. Its `places` is the table through
  // which kernels read.
  ExpertsFetchArgs layer(int64_t layer) const;
  TensorView transient() const { return transient_; }  // [2 half, bytes of the largest], device
  std::byte* kept_place(int64_t layer, int64_t place) const;  // fixed ones, then slots

  // What follows waits for the device's work before.
  // [layers, e] I32: the place of each expert, as the device's steps left it (decide.h)
  void read_places(std::span<int32_t> place_of) const;
  ExpertStats read_stats() const;
  // [layer]: of each expert, the decode steps that chose it
  std::vector<std::vector<int64_t>> read_totals() const;
  // A prompt's step has streamed so many bytes from homes.
  void count_streamed(int64_t bytes) { ++prompt_steps_, prompt_bytes_ += bytes; }

 private:
  ExpertOrder checked(const ExpertOrder& order) const;
  void allocate_homes(Memory& locked, const ExpertOrder& order, int64_t piece_bytes);
  void begin_state(const ExpertOrder& order);
  std::vector<int64_t> read(const Buffer& state) const;  // of I64

  ExpertPlaces places_;
  Memory& device_;
  std::vector<Buffer> pieces_;
  std::vector<std::byte*> homes_, first_places_;  // [layers * e]
  Buffer memory_;                                 // of places
  std::vector<TensorView> kept_;                  // [layers]: [kept, place_bytes]
  TensorView transient_;
  // [layers, e] I64, I64, [layers, e, 2] I32, [layers, e] I32, [layers, most places] I32,
  // [layers] I32, [layers, e] I64, [layers, 4] I64
  Buffer home_addresses_, addresses_, uses_, place_of_, expert_in_, step_, totals_, counters_;
  int64_t prompt_steps_ = 0, prompt_bytes_ = 0;
};

}  // namespace dsv4
