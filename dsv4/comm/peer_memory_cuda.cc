#include "dsv4/comm/peer_memory.h"

#include "dsv4/base/error.h"
#include "dsv4/device/error.h"

namespace dsv4 {

PeerMemory::PeerMemory(int ordinal, std::span<const int> ordinals, int64_t bytes) {
  cudaMemPoolProps props{};
  props.allocType = cudaMemAllocationTypePinned;
  props.location = {.type = cudaMemLocationTypeDevice, .id = ordinal};
  cuda_check(cudaMemPoolCreate(&pool_, &props), "cudaMemPoolCreate");
  try {
    let_peers_in(ordinal, ordinals);
    cuda_check(cudaSetDevice(ordinal), "cudaSetDevice");
    void* data = nullptr;
    cuda_check(cudaMallocFromPoolAsync(&data, static_cast<size_t>(bytes), pool_, nullptr),
               "cudaMallocFromPoolAsync");
    data_ = static_cast<unsigned char*>(data);
    cuda_check(cudaMemsetAsync(data, 0, static_cast<size_t>(bytes), nullptr), "cudaMemsetAsync");
    cuda_check(cudaStreamSynchronize(nullptr), "cudaStreamSynchronize");
  } catch (...) {
    if (data_ != nullptr) cudaFree(data_);
    cudaMemPoolDestroy(pool_);
    throw;
  }
}

PeerMemory::~PeerMemory() {
  cudaFree(data_);
  cudaMemPoolDestroy(pool_);
}

void PeerMemory::let_peers_in(int ordinal, std::span<const int> ordinals) {
  for (const int peer : ordinals) {
    if (peer == ordinal) continue;
    int can = 0;
    cuda_check(cudaDeviceCanAccessPeer(&can, peer, ordinal), "cudaDeviceCanAccessPeer");
    if (can == 0)
      fail(ErrorCode::kUnsupported,
           "GPU {} cannot reach memory of GPU {}: ranks need GPUs that do (nvidia-smi topo -p2p r)",
           peer, ordinal);
    cudaMemAccessDesc access{};
    access.location = {.type = cudaMemLocationTypeDevice, .id = peer};
    access.flags = cudaMemAccessFlagsProtReadWrite;
    cuda_check(cudaMemPoolSetAccess(pool_, &access, 1), "cudaMemPoolSetAccess");
  }
}

}  // namespace dsv4
