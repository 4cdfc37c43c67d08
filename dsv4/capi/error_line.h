// Exceptions end here: a C caller sees a status, and a line per thread.

#pragma once

#include <functional>

#include "dsv4_kernels.h"

namespace dsv4::capi {

// Runs `call`; what it throws becomes the status that is returned and the thread's error line.
int guarded(const std::function<void()>& call) noexcept;

}  // namespace dsv4::capi
