// A kernel that tempts the next one to read too early: it lets a kernel with programmatic dependent
// launch start at once, and writes its tensors long after.

#pragma once

#include "dsv4/device/device.h"
#include "tests/harness/arena.h"

namespace dsv4::test {

// Enqueues the kernel. It waits for `*go` to become nonzero (100 ms at most), then some
// microseconds more in which the next kernel starts, then does writes[0 .. count). All pointers:
// memory that the GPU addresses, until the kernel has finished.
void write_late(Device& device, const Write* writes, int count, const int32_t* go);

}  // namespace dsv4::test
