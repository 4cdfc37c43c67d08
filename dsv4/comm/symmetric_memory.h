// Memory that every rank has at equal places, and that all ranks write and read: values go to their
// last place without a window and a copy, or are read where they were computed
// (docs/spec/several-gpus.md 3; docs/adr/0042). It has two halves, which the exchanges of a step
// use in turn:
//
//   kInner     codes of u, h       exchanges between two products
//   kOutput    y of both blocks    exchanges after them
//
// Stores     An owner may store its part of a tensor into the memory of another rank when the
//            exchange before has ended here: that other rank has begun it then, so its kernels
//            before it have ended. So between two exchanges that bring values into one half there
//            must be another exchange, after the last kernel that reads what the first one brought.
// Reads      A rank may read another rank's part (Gathered::stays) up to its next exchange. So the
//            owner may overwrite that part when its own next exchange has ended.

#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "dsv4/tensor/scratch.h"

namespace dsv4 {

enum class SymmetricHalf : uint8_t { kInner, kOutput };
inline constexpr size_t kSymmetricHalves = 2;

using SymmetricBytes = std::array<int64_t, kSymmetricHalves>;

struct SymmetricMemory {
  std::array<Scratch, kSymmetricHalves> halves;
  Mirrors mirrors;  // of all addresses in both halves; empty: other ranks are not there

  Scratch& half(SymmetricHalf which) { return halves[static_cast<size_t>(which)]; }
};

}  // namespace dsv4
