// The listed blocks of a work tile, as a warp reads them.

#pragma once

#include "dsv4/device/math.cuh"

namespace dsv4::block_sparse_attention_kernel::sm90 {

// From the last visible block down. The warp holds 32 of them.
class ListReader {
 public:
  // list: null for every block below `size`.
  __device__ ListReader(const int* list, int size, int lane)
      : list_(list), lane_(lane), size_(size) {}

  // Without the blocks at the end that are not below `visible`.
  __device__ void trim(int visible) {
    while (list_ != nullptr && size_ > 0) {
      load((size_ - 1) / kWarp);
      const int here = size_ - held_ * kWarp;  // listed blocks of the 32, at most
      const unsigned seen = __ballot_sync(~0u, lane_ < here && blocks_ < visible);
      size_ -= here - __popc(seen);
      if (seen != 0) break;
    }
  }

  __device__ int size() const { return size_; }

  // All lanes ask for the same i.
  __device__ int operator[](int i) {
    if (list_ == nullptr) return i;
    if (i / kWarp != held_) load(i / kWarp);
    return __shfl_sync(~0u, blocks_, i % kWarp);
  }

 private:
  __device__ void load(int chunk) {
    held_ = chunk;
    const int i = chunk * kWarp + lane_;
    blocks_ = i < size_ ? list_[i] : 0;
  }

  const int* list_;
  int lane_, size_;
  int held_ = -1, blocks_ = 0;
};

}  // namespace dsv4::block_sparse_attention_kernel::sm90
