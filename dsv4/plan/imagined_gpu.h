// A GPU that is not in this machine: what implementations read of a device when they accept or
// refuse a call. It has no memory and launches nothing (Device::dry_run): memory plans and the
// table of a step's implementations (step_table.h) are made with it. CUDA builds.

#pragma once

#include <memory>
#include <string>

#include "dsv4/device/device.h"

namespace dsv4 {

// "h100" or "h200", with the properties that the driver reports. Throws kBadInput naming both.
std::unique_ptr<Device> imagined_gpu(const std::string& name);

}  // namespace dsv4
