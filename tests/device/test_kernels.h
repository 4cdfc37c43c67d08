// Kernels for the tests of the device layer.

#pragma once

#include "dsv4/device/device.h"

namespace dsv4::test {

void kill_device(Device& device);  // traps, with the effect of an illegal access in a real kernel
void store_value(Device& device, int32_t* to, int32_t value);

}  // namespace dsv4::test
