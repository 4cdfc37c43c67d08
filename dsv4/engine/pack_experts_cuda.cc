#include "dsv4/engine/pack_experts.h"

#include <algorithm>

#include "dsv4/ops/kbit/pack_image.h"

namespace dsv4 {

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

}  // namespace dsv4
