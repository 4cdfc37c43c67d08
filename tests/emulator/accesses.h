// Which kernel of a stream reads and writes which byte of global memory, to find accesses of two
// kernels that programmatic dependent launch leaves unordered.
//
// Two accesses to one byte by kernels i < j, at least one of them a write, are a hazard unless i is
// ordered before the access of j: j was launched without pdl, or the thread of j has executed
// griddepcontrol.wait, or synchronized with a thread of its CTA that has. Since griddepcontrol.wait
// waits for the kernel directly before, kernel i is ordered before j > i + 1 only if a thread of
// every kernel between them has executed it, too. What kernel j - 1 has waited for is ordered
// before all of j if every CTA of j - 1 waited before it executed griddepcontrol.launch_dependents.
// And what is ordered before all of j - 1 is ordered before all of j, which starts later.
//
// Ordinary loads and stores arrive here through -fsanitize=thread, which makes them calls; copies
// in the background through the emulated instructions.

#pragma once

#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <vector>

namespace dsv4::emulator {

struct Thread;

class Accesses {
 public:
  bool tracking = false;  // a stream with pdl

  // waited: griddepcontrol.wait is ordered before this access.
  void note(const Thread& thread, const void* at, size_t bytes, bool write, bool waited);

 private:
  static constexpr uintptr_t kLine = 64;
  struct Record {
    int grid;
    bool waited;
    uint64_t read, written;  // bytes of the line, as bits
    int cta, thread;         // the first
  };
  void note_line(const Thread& thread, uintptr_t line, uint64_t bytes, bool write, bool waited);

  std::unordered_map<uintptr_t, std::vector<Record>> lines_;
};

}  // namespace dsv4::emulator
