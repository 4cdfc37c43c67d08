// The room of a GPU (convert_room.h).

#include <array>
#include <bit>
#include <cmath>
#include <cstring>

#include "dsv4/base/error.h"
#include "dsv4/convert/convert_room.h"
#include "dsv4/device/device.h"
#include "dsv4/device/error.h"
#include "dsv4/loader/checkpoint_reader.h"
#include "dsv4/ops/kbit/quantize_kbit.h"
#include "dsv4/tensor/buffer.h"

namespace dsv4 {
namespace {

class GpuRoom : public ConvertRoom {
 public:
  GpuRoom(const Device& device, const Checkpoint& checkpoint)
      : device_(device.info().ordinal), reader_(checkpoint) {}
  ~GpuRoom() override { cudaStreamSynchronize(device_.stream()); }  // the buffers go away with this

  void enter() override { cuda_check(cudaSetDevice(device_.info().ordinal), "cudaSetDevice"); }
  Context context() override { return {.device = &device_}; }
  Memory& memory() override { return device_.memory(); }

  ConstTensorView bring(Slot slot, const ConstTensorView& view) override {
    DSV4_CHECK(view.is_contiguous(), "{} is not contiguous", to_string(view));
    std::byte* const staged = room_for(staging_, view.bytes(), device_.pinned());
    std::byte* const to = room_for(held_[slot], view.bytes(), device_.memory());
    reader_.read(view.data, view.bytes(), staged);
    device_.memory().upload(to, staged, view.bytes());
    return {view, to};
  }

  std::span<const std::byte> fetch(const ConstTensorView& view) override {
    DSV4_CHECK(view.is_contiguous(), "{} is not contiguous", to_string(view));
    std::byte* const to = room_for(staging_, view.bytes(), device_.pinned());
    device_.memory().download(to, view.data, view.bytes());
    return {to, static_cast<size_t>(view.bytes())};
  }

  float largest(const ConstTensorView& x) override {
    std::byte* const bits = room_for(largest_, sizeof(int32_t), device_.memory());
    largest_magnitude_on(device_, x, reinterpret_cast<int32_t*>(bits));
    int32_t most = 0;
    device_.memory().download(reinterpret_cast<std::byte*>(&most), bits, sizeof most);
    const auto largest = std::bit_cast<float>(most);
    if (!std::isfinite(largest)) fail(ErrorCode::kBadInput, "a NaN or an infinity");
    return largest;
  }

 private:
  // The buffer's memory, after it has grown to hold this.
  static std::byte* room_for(Buffer& buffer, int64_t bytes, Memory& memory) {
    if (buffer.empty() || buffer.view().bytes() < bytes)
      buffer = Buffer(DType::kU8, {bytes}, memory);
    return buffer.view().data;
  }

  Device device_;
  CheckpointReader reader_;
  Buffer staging_;                   // page-locked
  std::array<Buffer, kSlots> held_;  // of the device
  Buffer largest_;                   // of the device: the bits of an f32
};

}  // namespace

std::unique_ptr<ConvertRoom> gpu_room(const Device& device, const Checkpoint& checkpoint) {
  return std::make_unique<GpuRoom>(device, checkpoint);
}

}  // namespace dsv4
