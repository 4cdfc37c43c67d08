// A kernel that dies, as a wild pointer in a real one would.

#pragma once

#include "dsv4/device/device.h"

namespace dsv4::test {

void kill_device(Device& device);  // enqueues it

}  // namespace dsv4::test
