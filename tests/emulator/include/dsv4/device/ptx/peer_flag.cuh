// dsv4/device/ptx/peer_flag.cuh on the emulator: one device with sequentially consistent memory. A
// thread that waits sleeps until the flag has changed.

#pragma once

#include <cstdint>

#include "tests/emulator/instructions.h"

namespace dsv4::ptx {

// A clock that advances by a nanosecond at every read, so what a kernel measures is how often it
// was read meanwhile. One thread of the host runs a launch: no lock is needed.
inline int64_t global_nanoseconds() {
  static int64_t time = 0;
  return ++time;
}

// The waits below sleep instead. A poll for anything else asks once.
template <class Came>
bool poll(const Came& came, const int64_t*, int64_t) {
  return came();
}

// A flag that never comes is an error of the emulator, so `stop` and the time have
// no effect.
inline void raise_flag(int64_t* flag, int64_t value) {
  emulator::flag_raise(flag, value);
}
inline bool wait_for_flag(const int64_t* flag, int64_t least, const int64_t*, int64_t) {
  emulator::flag_wait(flag, least);
  return true;
}

// A word is written before its number, and one thread of the host runs a launch, so no thread sees
// one without the other.
struct alignas(16) NumberedWord {
  uint64_t value;
  int64_t number;
};
inline void store_numbered(NumberedWord* word, uint64_t value, int64_t number) {
  word->value = value;
  emulator::flag_raise(&word->number, number);
}
inline bool wait_for_numbered(const NumberedWord* word, int64_t least, uint64_t& value,
                              const int64_t*, int64_t) {
  emulator::flag_wait(&word->number, least);
  value = word->value;
  return true;
}

}  // namespace dsv4::ptx
