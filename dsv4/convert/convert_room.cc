#include "dsv4/convert/convert_room.h"

#include "dsv4/base/error.h"
#include "dsv4/ops/kbit/quantize_kbit.h"

namespace dsv4 {
namespace {

class HostRoom : public ConvertRoom {
 public:
  void enter() override {}
  Context context() override { return {}; }
  Memory& memory() override { return host_memory(); }
  ConstTensorView bring(Slot, const ConstTensorView& view) override { return view; }
  std::span<const std::byte> fetch(const ConstTensorView& view) override {
    return {view.data, static_cast<size_t>(view.bytes())};
  }
  float largest(const ConstTensorView& x) override { return largest_magnitude(x); }
};

}  // namespace

std::unique_ptr<ConvertRoom> host_room() {
  return std::make_unique<HostRoom>();
}

#if !DSV4_CUDA
std::unique_ptr<ConvertRoom> gpu_room(const Device&, const Checkpoint&) {
  fail(ErrorCode::kUnsupported, "this program was built without CUDA");
}
#endif

}  // namespace dsv4
