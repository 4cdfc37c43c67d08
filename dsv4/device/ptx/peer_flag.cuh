// Flags, and words with a number, in memory that kernels of several devices reach, each written by
// one of them; and the clock that limits how long a kernel waits for them.

#pragma once

#include <cstdint>

namespace dsv4::ptx {

// The clock that all SMs of a GPU share, whose frequency does not change. It advances every 32 ns
// or every microsecond, as the driver has set it. Clocks of two GPUs differ.
__device__ inline int64_t global_nanoseconds() {
  int64_t time;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(time));
  return time;
}

// Flags in memory that kernels of several devices reach, each written by one of them. What a thread
// wrote, or waited for at a barrier of its CTA, before it raised a flag is visible to a thread that
// has waited for the flag. A release at system scope.
__device__ inline void raise_flag(int64_t* flag, int64_t value) {
  asm volatile("st.release.sys.global.s64 [%0], %1;" ::"l"(flag), "l"(value) : "memory");
}

// Polls came() until it is true. Gives up and returns false when *stop is not 0, or after that many
// nanoseconds. *stop may be in host memory, where a read takes an H200 20 us in which nothing else
// is seen, so it is read every few milliseconds only.
template <class Came>
__device__ bool poll(const Came& came, const int64_t* stop, int64_t nanoseconds) {
  constexpr int kPollsBetweenChecks = 8192;
  int64_t end = 0;
  for (int polls = 1;; ++polls) {
    if (came()) return true;
    if (polls % kPollsBetweenChecks != 0) continue;
    if (end == 0) end = global_nanoseconds() + nanoseconds;
    int64_t stopped;
    asm volatile("ld.relaxed.sys.global.s64 %0, [%1];" : "=l"(stopped) : "l"(stop) : "memory");
    if (stopped != 0 || global_nanoseconds() > end) return false;
  }
}

// Waits until the flag is at least `least`, as poll() does; an acquire at system scope.
__device__ inline bool wait_for_flag(const int64_t* flag, int64_t least, const int64_t* stop,
                                     int64_t nanoseconds) {
  const auto came = [=] {
    int64_t value;
    asm volatile("ld.acquire.sys.global.s64 %0, [%1];" : "=l"(value) : "l"(flag) : "memory");
    return value >= least;
  };
  return poll(came, stop, nanoseconds);
}

// Eight bytes and a number that shows when they came. One access of 128 bits moves both, so a
// thread that reads the number has the bytes, and neither a flag nor a fence is needed.
struct alignas(16) NumberedWord {
  uint64_t value;
  int64_t number;
};

__device__ inline void store_numbered(NumberedWord* word, uint64_t value, int64_t number) {
  asm volatile(
      "{\n"
      ".reg .b128 both;\n"
      "mov.b128 both, {%1, %2};\n"
      "st.relaxed.sys.global.b128 [%0], both;\n"
      "}" ::"l"(word),
      "l"(value), "l"(number)
      : "memory");
}

// The value of a word once its number is at least `least`; waits as poll() does.
__device__ inline bool wait_for_numbered(const NumberedWord* word, int64_t least, uint64_t& value,
                                         const int64_t* stop, int64_t nanoseconds) {
  const auto came = [&] {
    int64_t number;
    asm volatile(
        "{\n"
        ".reg .b128 both;\n"
        "ld.relaxed.sys.global.b128 both, [%2];\n"
        "mov.b128 {%0, %1}, both;\n"
        "}"
        : "=l"(value), "=l"(number)
        : "l"(word)
        : "memory");
    return number >= least;
  };
  return poll(came, stop, nanoseconds);
}

}  // namespace dsv4::ptx
