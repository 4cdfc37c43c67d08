// Runs kernels on the CPU, one thread at a time (docs/kernels/emulator.md).

#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

namespace dsv4::emulator {

struct Dim3 {
  int x = 1, y = 1, z = 1;
  constexpr Dim3(int x_ = 1, int y_ = 1, int z_ = 1) : x(x_), y(y_), z(z_) {}
  constexpr int count() const { return x * y * z; }
};

struct Launch {
  Dim3 grid;          // CTAs
  Dim3 block = 32;    // threads
  int cluster = 1;    // CTAs along x
  size_t shared = 0;  // bytes of dynamic shared memory
  uint64_t seed = 0;  // of the schedule; seed % 4: how late asynchronous operations complete
  // Programmatic dependent launch: CTAs may start as soon as every CTA of the kernel before has
  // executed griddepcontrol.launch_dependents or has exited. For launch_stream().
  bool pdl = false;
  int resident = 1;  // clusters of this kernel that run at the same time, at most
};

struct Kernel {
  Launch launch;
  std::function<void()> body;
};

// Throws Error with the thread and the instruction when the kernel breaks a rule, or with what
// every thread waits for when no thread can continue.
void launch(const Launch& how, const std::function<void()>& kernel);

// Kernels of one stream, in order (at most 64); the schedule depends on `seed`, not on theirs.
// Also throws when two kernels access the same byte of global memory, one of them writes it, and
// neither griddepcontrol.wait nor an ordinary launch orders the two accesses. That does not depend
// on the schedule.
void launch_stream(const std::vector<Kernel>& kernels, uint64_t seed);

}  // namespace dsv4::emulator
