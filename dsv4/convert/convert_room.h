// Where the pieces of a weight are converted: in host memory, or on a GPU with a CUDA stream of its
// own, so that several rooms of one GPU overlap their copies and kernels.
//
// A room takes stored rows and importance in, runs ops on what it holds, and gives results out. All
// of its functions return when their work is done.

#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "dsv4/ops/op.h"
#include "dsv4/tensor/memory.h"
#include "dsv4/tensor/tensor.h"

namespace dsv4 {

class Checkpoint;

class ConvertRoom {
 public:
  // What a room holds of the host's tensors, one of each.
  enum Slot : uint8_t { kData, kScale, kCodebook, kImportance, kSlots };

  virtual ~ConvertRoom() = default;
  // Lets the calling thread use the room. One thread at a time does.
  virtual void enter() = 0;
  virtual Context context() = 0;
  // Ops in this context read and write tensors of this memory.
  virtual Memory& memory() = 0;
  // A contiguous tensor of the host where ops read it, until the slot's next tensor.
  virtual ConstTensorView bring(Slot slot, const ConstTensorView& view) = 0;
  // The bytes of a contiguous tensor of the room, in host memory until the next call.
  virtual std::span<const std::byte> fetch(const ConstTensorView& view) = 0;
  // The largest magnitude of x: [n, k] f32. Throws kBadInput at a NaN or an infinity.
  virtual float largest(const ConstTensorView& x) = 0;
};

std::unique_ptr<ConvertRoom> host_room();
// A room of a GPU, in CUDA builds. Tensors of `checkpoint` are read from its files, straight into
// page-locked memory. Messages about values that are refused name no place: the caller repeats the
// conversion on the host.
std::unique_ptr<ConvertRoom> gpu_room(const Device& device, const Checkpoint& checkpoint);

}  // namespace dsv4
