// Kernels of the device layer's own tests.

#pragma once

#include "dsv4/device/device.h"

namespace dsv4::test {

void kill_device(Device& device);  // dies, as a wild pointer in a real kernel would
void store_value(Device& device, int32_t* to, int32_t value);

}  // namespace dsv4::test
