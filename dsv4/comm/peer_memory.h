// Device memory that kernels of other GPUs read and write.
//
// It comes from a pool of its own, so that nothing else of the device is mapped for the others, as
// cudaDeviceEnablePeerAccess() would do.

#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <span>

namespace dsv4 {

class PeerMemory {
 public:
  // Zeros. ordinals: the GPUs that use it, with or without `ordinal` itself. Throws kUnsupported
  // when one of them cannot reach memory of `ordinal`.
  PeerMemory(int ordinal, std::span<const int> ordinals, int64_t bytes);
  ~PeerMemory();
  PeerMemory(const PeerMemory&) = delete;
  PeerMemory& operator=(const PeerMemory&) = delete;

  unsigned char* data() const { return data_; }

 private:
  void let_peers_in(int ordinal, std::span<const int> ordinals);

  cudaMemPool_t pool_ = nullptr;
  unsigned char* data_ = nullptr;
};

}  // namespace dsv4
