#include "tests/harness/twin.h"

#include <sys/mman.h>

#include <algorithm>
#include <bit>

#include "dsv4/base/bits.h"
#include "dsv4/base/error.h"
#include "dsv4/tensor/memory.h"
#include "tests/harness/gpu.h"

namespace dsv4::test {
namespace {

// Registering pages with the driver takes longer than filling them: rarely, and much at once.
int64_t room_for(int64_t bytes) {
  constexpr int64_t kSmallest = 1 << 16, kStep = 1 << 28;
  if (bytes > kStep) return align_up(bytes, kStep);
  return static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(std::max(bytes, kSmallest))));
}

}  // namespace

Twin::~Twin() {
  release();
}

void Twin::release() {
  if (capacity_ == 0) return;
  if (gpu() != nullptr) {
    memory_for(gpu()).release(device_.data);
    forget_pages(host_.data);
  }
  munmap(host_.data, static_cast<size_t>(capacity_));
  capacity_ = 0;
}

void Twin::reshape(DType dtype, std::initializer_list<int64_t> shape) {
  const TensorMeta meta = TensorMeta::contiguous(dtype, shape);
  std::byte *host = host_.data, *device = device_.data;
  if (meta.bytes() > capacity_) {
    release();
    const int64_t bytes = room_for(meta.bytes());
    void* map = mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    DSV4_CHECK(map != MAP_FAILED, "mmap of {} bytes", bytes);
    host = device = static_cast<std::byte*>(map);
    if (gpu() != nullptr) {
      let_gpu_address(map, static_cast<size_t>(bytes));
      device = memory_for(gpu()).allocate(bytes);
    }
    capacity_ = bytes;
  }
  host_ = TensorView(meta, host);
  device_ = TensorView(meta, device);
}

void Twin::upload() const {
  if (gpu() != nullptr) memory_for(gpu()).upload(device_.data, host_.data, host_.bytes());
}

void Twin::download() const {
  if (gpu() != nullptr) memory_for(gpu()).download(host_.data, device_.data, host_.bytes());
}

}  // namespace dsv4::test
