#include "dsv4/engine/pack_experts.h"

#include <algorithm>

#include "dsv4/device/device.h"
#include "dsv4/ops/kbit/pack_image.h"

namespace dsv4 {
namespace {

// [e, weights] of an image whose experts have so many weights; k-bit images have none.
std::vector<ExponentRange> ranges_of(Device& device, const KbitImage& image,
                                     const ConstTensorView& bytes, int weights) {
  const int64_t experts = bytes.dim(0), numbers = experts * weights * 2;
  std::vector<ExponentRange> ranges(static_cast<size_t>(experts * weights));
  if (image.scale != ImageScale::kUe8m0) return ranges;
  static_assert(sizeof(ExponentRange) == 2 * sizeof(int32_t));
  const Buffer found(DType::kI32, {numbers}, device.memory());
  find_exponents(device.stream(), image, weights == 2, bytes.data, experts,
                 reinterpret_cast<ExponentRange*>(found.view().data));
  device.wait();
  device.memory().download(reinterpret_cast<std::byte*>(ranges.data()), found.view().data,
                           found.view().bytes());
  return ranges;
}

}  // namespace

int64_t largest_expert(std::span<const ImageJob> jobs) {
  int64_t largest = 0;
  for (const ImageJob& job : jobs) largest = std::max(largest, job.stored_bytes());
  return largest;
}

void pack_expert(cudaStream_t stream, const ImageJob& job, const std::byte* staging,
                 std::byte* block) {
  const std::vector<TensorPlace> at = staged_tensors(job);
  const auto flat = [&](size_t matrix) {
    return FlatKbit{.planes = reinterpret_cast<const uint32_t*>(staging + at[2 * matrix].offset),
                    .scale = reinterpret_cast<const uint8_t*>(staging + at[2 * matrix + 1].offset)};
  };
  const FlatKbit gate_up[] = {flat(0), flat(1)}, down = flat(2);
  pack_kbit_image(stream, job.gate_up, gate_up, block + job.gate_up_offset);
  pack_kbit_image(stream, job.down, {&down, 1}, block + job.down_offset);
}

void set_exponents_of(ExpertImages& images, std::span<const ExponentRange> gate_up,
                      std::span<const ExponentRange> down, Device& device) {
  const std::vector<int32_t> largest = folded_exponents(gate_up, down);
  if (largest.empty()) {
    images.exponents = {};
    return;
  }
  device.memory().upload(const_cast<std::byte*>(images.exponents.data),
                         reinterpret_cast<const std::byte*>(largest.data()),
                         images.exponents.bytes());
}

void find_expert_exponents(Model& model, Device& device) {
  model.for_each_images([&](ExpertImages& images) {
    if (images.exponents.empty() || images.has_places()) return;
    const auto gate_up = ranges_of(device, images.gate_up, images.gate_up_bytes, 2),
               down = ranges_of(device, images.down, images.down_bytes, 1);
    set_exponents_of(images, gate_up, down, device);
  });
}

}  // namespace dsv4
