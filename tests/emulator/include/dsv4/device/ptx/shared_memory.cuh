// dsv4/device/ptx/shared_memory.cuh on the emulator.

#pragma once

#include "tests/emulator/instructions.h"

namespace dsv4::ptx {

inline unsigned char* dynamic_smem() {
  return emulator::block_memory();
}

inline uint32_t smem_address(const void* pointer) {
  return emulator::shared_address(pointer);
}
inline uint32_t smem_offset(uint32_t address) {
  return address % emulator::kSharedWindow;
}

inline uint32_t mapa(const void* pointer, uint32_t rank) {
  return emulator::shared_address_in_cluster(pointer, rank);
}

inline void st_shared_v4_zero(uint32_t to) {
  emulator::store_zeros(to);
}

}  // namespace dsv4::ptx
