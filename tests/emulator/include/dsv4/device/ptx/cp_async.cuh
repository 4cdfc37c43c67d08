// dsv4/device/ptx/cp_async.cuh on the emulator.

#pragma once

#include "dsv4/device/ptx/shared_memory.cuh"

namespace dsv4::ptx {

template <int kBytes>
inline void cp_async(void* to, const void* from) {
  static_assert(kBytes == 4 || kBytes == 8 || kBytes == 16);
  emulator::copy(smem_address(to), from, kBytes, true);
}
inline void cp_async_16(uint32_t to, const void* from) {
  emulator::copy(to, from, 16, true);
}
inline void cp_async_4_zfill(uint32_t to, const void* from, bool valid) {
  emulator::copy(to, from, 4, valid);
}
inline void cp_async_zfill(uint32_t to, const void* from, bool valid) {
  emulator::copy(to, from, 16, valid);
}
inline void cp_async_commit_group() {
  emulator::commit_copies();
}
template <int kGroups>
inline void cp_async_wait_group() {
  emulator::wait_for_copies(kGroups);
}
inline void cp_async_wait_all() {
  emulator::wait_for_copies();
}

}  // namespace dsv4::ptx
