#include "tests/emulator/accesses.h"

#include <algorithm>
#include <bit>

#include "tests/emulator/machine.h"

namespace dsv4::emulator {
namespace {

bool is_ordered(int earlier, int later, bool later_waited) {
  const Grid& grid = machine().grids[static_cast<size_t>(later)];
  return ((later_waited ? grid.after_wait : grid.before) >> earlier & 1) != 0;
}

const char* reason(int earlier, int later, bool later_waited) {
  if (!later_waited) return "before griddepcontrol.wait";
  return earlier + 1 == later ? "unordered"
                              : "although a kernel between the two has not waited for its own";
}

}  // namespace

void Accesses::note(const Thread& thread, const void* at, size_t bytes, bool write, bool waited) {
  if (!tracking) return;
  auto first = reinterpret_cast<uintptr_t>(at);
  const uintptr_t end = first + bytes;
  while (first < end) {
    const uintptr_t line = first / kLine, stop = std::min(end, (line + 1) * kLine);
    const auto count = static_cast<int>(stop - first);
    const uint64_t mask = (count == 64 ? ~uint64_t{0} : (uint64_t{1} << count) - 1)
                          << (first % kLine);
    note_line(thread, line, mask, write, waited);
    first = stop;
  }
}

void Accesses::note_line(const Thread& thread, uintptr_t line, uint64_t bytes, bool write,
                         bool waited) {
  const int grid = thread.cta->cluster->grid->number;
  std::vector<Record>& records = lines_[line];
  Record* mine = nullptr;
  for (Record& other : records) {
    if (other.grid == grid) {
      if (other.waited == waited) mine = &other;
      continue;
    }
    const uint64_t common = bytes & (write ? other.read | other.written : other.written);
    const int earlier = std::min(grid, other.grid), later = std::max(grid, other.grid);
    const bool later_waited = later == grid ? waited : other.waited;
    if (common == 0 || is_ordered(earlier, later, later_waited)) continue;
    const uintptr_t at = line * kLine + static_cast<uintptr_t>(std::countr_zero(common));
    kernel_error("{} the byte at {:#x}, which kernel {} CTA {} thread {} {}: kernel {} does so {}",
                 write ? "writes" : "reads", at, other.grid, other.cta, other.thread,
                 (other.written & common) != 0 ? "has written" : "has read", later,
                 reason(earlier, later, later_waited));
  }
  if (mine == nullptr)
    mine = &records.emplace_back(Record{grid, waited, 0, 0, thread.cta->index, thread.index});
  (write ? mine->written : mine->read) |= bytes;
}

namespace {

constexpr uintptr_t kPiece = 16;  // bytes of shared memory with one last writer

// An ordinary access in the kernel's own code.
void ordinary(const void* at, size_t bytes, bool write) {
  Thread* const thread = kernel_thread();
  if (thread == nullptr || machine().on_stack(at)) return;
  if (!machine().in_shared(at)) {
    machine().accesses.note(*thread, at, bytes, write, thread->knows.waited);
  } else if (write) {
    const uint32_t first = machine().address_of(*thread->cta, at);
    for (uintptr_t i = first / kPiece; i <= (first + bytes - 1) / kPiece; ++i)
      note_write(*thread, static_cast<uint32_t>(i * kPiece));
  }
}

}  // namespace
}  // namespace dsv4::emulator

// What -fsanitize=thread calls: this is its run-time library as far as kernels need it.
#define DSV4_ACCESS(name, bytes, write)         \
  void __tsan_##name(const void* at) {          \
    dsv4::emulator::ordinary(at, bytes, write); \
  }
#define DSV4_ACCESSES(bytes)                       \
  DSV4_ACCESS(read##bytes, bytes, false)           \
  DSV4_ACCESS(write##bytes, bytes, true)           \
  DSV4_ACCESS(unaligned_read##bytes, bytes, false) \
  DSV4_ACCESS(unaligned_write##bytes, bytes, true) \
  DSV4_ACCESS(volatile_read##bytes, bytes, false)  \
  DSV4_ACCESS(volatile_write##bytes, bytes, true)
extern "C" {
void __tsan_init() {
}
DSV4_ACCESSES(1)
DSV4_ACCESSES(2)
DSV4_ACCESSES(4)
DSV4_ACCESSES(8)
DSV4_ACCESSES(16)
DSV4_ACCESS(vptr_read, sizeof(void*), false)
void __tsan_vptr_update(const void* at, const void*) {
  dsv4::emulator::ordinary(at, sizeof(void*), true);
}
void __tsan_read_range(const void* at, size_t bytes) {
  dsv4::emulator::ordinary(at, bytes, false);
}
void __tsan_write_range(const void* at, size_t bytes) {
  dsv4::emulator::ordinary(at, bytes, true);
}
}
