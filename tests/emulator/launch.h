// Runs a kernel on the CPU, one thread after the other (docs/kernels/emulator.md).

#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

namespace dsv4::emulator {

struct Launch {
  int grid = 1;
  int block = 32;     // threads, whole warps
  int cluster = 1;    // blocks
  size_t shared = 0;  // dynamic, bytes
  uint64_t seed = 0;  // of the order in which things happen; seed % 4: how late copies and products
};

// Throws Error with the thread and the instruction when the kernel breaks a rule, or with what
// every thread waits for when none can go on.
void launch(const Launch& how, const std::function<void()>& kernel);

}  // namespace dsv4::emulator
