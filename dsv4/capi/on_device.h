// A Context on a device that the caller drives: its stream, its workspace or a schedule's.

#pragma once

#include <cstddef>
#include <functional>
#include <memory>

#include "dsv4/ops/op.h"
#include "dsv4_kernels.h"

namespace dsv4::capi {

// Where a call runs; ordinal DSV4_HOST needs nothing else.
struct Place {
  int ordinal = DSV4_HOST;
  void* stream = nullptr;
  void* workspace = nullptr;
  size_t workspace_bytes = 0;
};

// Calls `call` with `context` placed there; the device is current meanwhile. Without CUDA in this
// build any ordinal but DSV4_HOST throws kUnsupported.
void on_device(const Place& place, Context context,
               const std::function<void(const Context&)>& call);

}  // namespace dsv4::capi

// At least `bytes` of device memory for calls on a stream; what it once gave stays.
struct dsv4_schedule {
  dsv4_schedule();
  ~dsv4_schedule();
  // Throws kResource when it would have to allocate while the stream is captured.
  void* workspace(const dsv4::capi::Place& place, size_t bytes);

 private:
  struct Blocks;
  std::unique_ptr<Blocks> blocks_;
};
