// What the emulator keeps in a CUtensorMap, whose real contents only the driver knows.

#pragma once

#include "dsv4/device/tma_map.h"

namespace dsv4::emulator {

// The stand-in for dsv4::make_tma_map(): for emulated kernels only, of a tensor in host memory.
// Throws kInvalidArgument as that does, and for a swizzled box whose rows are narrower than the
// swizzle.
CUtensorMap make_tma_map(const TmaBox& box);

// The description that make_tma_map() was given; fails if the map is not one of its results.
TmaBox description(const CUtensorMap& map);

int64_t swizzle_bytes(TmaSwizzle swizzle);  // of a row of the box; 0: any, not swizzled

}  // namespace dsv4::emulator
