// A kernel that stands before or after those under test in a stream.

#pragma once

#include <vector>

#include "dsv4/device/ptx/griddep.cuh"
#include "dsv4/tensor/tensor.h"
#include "tests/emulator/launch.h"

namespace dsv4::emulator {

// Reads and writes every byte: what is read or written too early is a race.
inline Kernel touching(std::vector<ConstTensorView> views) {
  return {{.block = 32, .pdl = true}, [=] {
            ptx::griddepcontrol_launch_dependents();
            ptx::griddepcontrol_wait();
            for (const ConstTensorView& view : views) {
              auto* bytes = reinterpret_cast<volatile uint8_t*>(const_cast<std::byte*>(view.data));
              for (int64_t i = threadIdx.x; i < view.bytes(); i += 32)
                bytes[i] = static_cast<uint8_t>(bytes[i]);
            }
          }};
}

}  // namespace dsv4::emulator
