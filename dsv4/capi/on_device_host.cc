// on_device.h in a build without CUDA.

#if !DSV4_CUDA

#include "dsv4/base/error.h"
#include "dsv4/capi/on_device.h"

namespace dsv4::capi {

void on_device(const Place& place, Context context,
               const std::function<void(const Context&)>& call) {
  if (place.ordinal != DSV4_HOST) {
    fail(ErrorCode::kUnsupported, "device={}: this build has no CUDA, only DSV4_HOST ({})",
         place.ordinal, DSV4_HOST);
  }
  call(context);
}

}  // namespace dsv4::capi

struct dsv4_schedule::Blocks {};

dsv4_schedule::dsv4_schedule() : blocks_(nullptr) {
}
dsv4_schedule::~dsv4_schedule() = default;

void* dsv4_schedule::workspace(const dsv4::capi::Place&, size_t) {
  return nullptr;  // the host takes none
}

#endif
