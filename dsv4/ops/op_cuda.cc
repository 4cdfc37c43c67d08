// dry_run_bytes() of op.h in the CUDA build.

#include "dsv4/device/device.h"
#include "dsv4/ops/op.h"

namespace dsv4 {

int64_t dry_run_bytes(const Context& context, void (*run)(const Context&, const void* call),
                      const void* call) {
  if (context.device == nullptr) return 0;
  const auto device = Device::dry_run(context.device->info());
  Context dry = context;
  dry.device = device.get();
  dry.observer = nullptr;
  run(dry, call);
  return device->workspace().peak_bytes();
}

}  // namespace dsv4
