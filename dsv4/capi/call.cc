#include "dsv4/capi/call.h"

namespace dsv4::capi {
namespace {

dsv4_call checked_call(const dsv4_call* call) {
  return call == nullptr ? dsv4_call{} : checked("call", call);
}

Context context_of(const dsv4_call& call) {
  return {.numerics = call.exact != 0 ? Numerics::kExact : Numerics::kOfficial,
          .need_batch_invariant = call.batch_invariant != 0,
          .force_impl = call.implementation == nullptr ? "" : call.implementation};
}

size_t bytes_of(const dsv4_call& call, int device, const BoundOp& op) {
  int64_t bytes = 0;
  on_device({.ordinal = device}, context_of(call),
            [&](const Context& context) { bytes = op.workspace_bytes(context); });
  return static_cast<size_t>(bytes);
}

}  // namespace

void run(const dsv4_call* given, int device, const BoundOp& op) {
  const dsv4_call call = checked_call(given);
  Place place{.ordinal = device,
              .stream = call.stream,
              .workspace = call.workspace,
              .workspace_bytes = call.workspace_bytes};
  if (device != DSV4_HOST && call.workspace == nullptr && call.schedule != nullptr) {
    place.workspace_bytes = bytes_of(call, device, op);
    if (place.workspace_bytes > 0)
      place.workspace = call.schedule->workspace(place, place.workspace_bytes);
  }
  on_device(place, context_of(call), op.run);
}

void write_workspace_bytes(const dsv4_call* given, int device, const BoundOp& op, size_t* bytes) {
  const dsv4_call call = checked_call(given);
  DSV4_CHECK(bytes != nullptr, "bytes is null");
  *bytes = bytes_of(call, device, op);
}

}  // namespace dsv4::capi

int dsv4_schedule_create(dsv4_schedule** schedule) {
  return dsv4::capi::guarded([&] {
    DSV4_CHECK(schedule != nullptr, "schedule is null");
    *schedule = new dsv4_schedule;
  });
}

void dsv4_schedule_destroy(dsv4_schedule* schedule) {
  delete schedule;
}
