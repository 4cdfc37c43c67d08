#include "dsv4/engine/expert_memory.h"

#include <algorithm>
#include <limits>

#include "dsv4/base/error.h"
#include "dsv4/base/size_text.h"

namespace dsv4 {
namespace {

int64_t gpu_bytes(const ExpertMemory& memory, const DenseBytes& dense, int64_t free_bytes) {
  const int64_t room = std::min(free_bytes, memory.cap_bytes.value_or(free_bytes)) - dense.sum();
  const int64_t most = std::max<int64_t>(0, memory.gpu_bytes ? room : room - kSpareBytes);
  const int64_t wanted = memory.gpu_bytes.value_or(most);
  if (wanted == 0 || wanted > most)
    fail(ErrorCode::kResource,
         "{} for experts: of {} of GPU memory, dense weights take {}, the cache {} and the "
         "workspace {}, which leaves {} (shorter context, smaller batches or a smaller "
         "--experts-memory)",
         memory.gpu_bytes ? size_text(wanted, 2) : "no room",
         size_text(std::min(free_bytes, memory.cap_bytes.value_or(free_bytes)), 2),
         size_text(dense.weights, 2), size_text(dense.cache, 2), size_text(dense.workspace, 2),
         size_text(most, 2));
  return wanted;
}

int64_t host_bytes(const ExpertMemory& memory, int64_t available_bytes) {
  const int64_t spare = host_spare_bytes(available_bytes);
  const int64_t most = std::max<int64_t>(0, available_bytes - memory.other_host_bytes - spare);
  if (memory.host_bytes.value_or(0) > most)
    fail(ErrorCode::kResource,
         "{} of host memory for experts (--host-memory): {} are available, {} of them for other "
         "caches and {} to be left alone",
         size_text(*memory.host_bytes, 2), size_text(available_bytes, 2),
         size_text(memory.other_host_bytes, 2), size_text(spare, 2));
  return memory.host_bytes.value_or(most);
}

}  // namespace

ExpertPlaces plan_expert_memory(const ExpertMemory& memory, const DenseBytes& dense,
                                std::vector<int64_t> image_bytes, int64_t num_experts,
                                int64_t free_bytes, int64_t available_bytes) {
  const int64_t gpu = gpu_bytes(memory, dense, free_bytes),
                host = host_bytes(memory, available_bytes);
  if (!memory.share_copies) return plan_places(std::move(image_bytes), num_experts, gpu, host);
  ExpertPlaces places =
      plan_places(std::move(image_bytes), num_experts, gpu, std::numeric_limits<int64_t>::max());
  places.shared_host_bytes = host;
  return places;
}

void refuse_expert_memory(const std::string& why) {
  fail(ErrorCode::kUnsupported, "--experts-memory: {}", why);
}

}  // namespace dsv4
