// Many copies in one launch, inside and between device memory and page-locked host memory. A prefix
// of 100,000 tokens lies in 100,000 pieces, for which copies one by one take a tenth of a second.

#pragma once

#include "dsv4/device/device.h"
#include "dsv4/device/event.h"
#include "dsv4/tensor/copy_piece.h"

namespace dsv4 {

// pieces: [count] in memory that the device reads, valid until the stream has come to this
void copy_pieces(Device& device, const CopyPiece* pieces, int64_t count);

// A second stream of a device, for copies beside what the first one computes.
class CopyStream {
 public:
  explicit CopyStream(Device& device);
  ~CopyStream();  // waits until it is idle
  CopyStream(const CopyStream&) = delete;
  CopyStream& operator=(const CopyStream&) = delete;

  // copy_pieces() after what the device's own stream has been given so far. Records `end` after it.
  void copy(const CopyPiece* pieces, int64_t count, Event& end);

 private:
  Device& device_;
  cudaStream_t stream_ = nullptr;
  Event begin_;
};

}  // namespace dsv4
