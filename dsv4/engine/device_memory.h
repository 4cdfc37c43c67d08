// How much of a device's memory is in use, by every program together.

#pragma once

#include <cstdint>

namespace dsv4 {

class Device;

struct MemoryUse {
  int64_t total_bytes = 0, free_bytes = 0;
};

// Memory of a device; zeros for the host (null) and in builds without CUDA.
MemoryUse device_memory(const Device* device);

}  // namespace dsv4
