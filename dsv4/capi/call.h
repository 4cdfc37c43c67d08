// A C call of an op: structs checked, context placed, workspace found.

#pragma once

#include <functional>

#include "dsv4/base/error.h"
#include "dsv4/capi/on_device.h"
#include "dsv4/capi/tensors.h"
#include "dsv4_kernels.h"

namespace dsv4::capi {

// Runs `call`. Exceptions end here: what it throws becomes the status that is returned and the
// thread's error line.
int guarded(const std::function<void()>& call) noexcept;

// *params, whose first member is its size. Throws kInvalidArgument for null and for other sizes.
template <class Params>
const Params& checked(const char* name, const Params* params) {
  DSV4_CHECK(params != nullptr, "{} is null", name);
  DSV4_CHECK(params->size == sizeof(Params), "{}.size={}: this library's struct has {} bytes", name,
             params->size, sizeof(Params));
  return *params;
}

// An op with its arguments.
struct BoundOp {
  std::function<int64_t(const Context&)> workspace_bytes;
  std::function<void(const Context&)> run;
};

// `call` may be null; `device` is that of the arguments.
void run(const dsv4_call* call, int device, const BoundOp& op);
void write_workspace_bytes(const dsv4_call* call, int device, const BoundOp& op, size_t* bytes);

}  // namespace dsv4::capi
