// Many copies in one launch, inside and between device memory and page-locked host memory. A prefix
// of 100,000 tokens lies in 100,000 pieces, for which copies one by one take a tenth of a second.

#pragma once

#include <cuda_runtime.h>

#include <memory>

#include "dsv4/device/device.h"
#include "dsv4/tensor/copy_piece.h"

namespace dsv4 {

// pieces: [count] in memory that the device reads, valid until the stream has come to this
void copy_pieces(Device& device, const CopyPiece* pieces, int64_t count);

// A mark on a stream. Event (event.h) also measures time, which costs more.
class StreamMark {
 public:
  StreamMark();
  void record(cudaStream_t stream);
  // Whether the stream has come to the last record(); true when there was none.
  bool reached() const;
  void wait() const;
  // What `stream` is given next comes after the last record().
  void let_wait(cudaStream_t stream) const;

 private:
  struct Destroy {
    void operator()(cudaEvent_t event) const { cudaEventDestroy(event); }
  };
  std::unique_ptr<std::remove_pointer_t<cudaEvent_t>, Destroy> event_;
};

// A second stream of a device, for copies beside what the first one computes.
class CopyStream {
 public:
  explicit CopyStream(Device& device);
  ~CopyStream();  // waits until it is idle
  CopyStream(const CopyStream&) = delete;
  CopyStream& operator=(const CopyStream&) = delete;

  // copy_pieces() after what the device's own stream has been given so far. Records `end` after it.
  void copy(const CopyPiece* pieces, int64_t count, StreamMark& end);

 private:
  Device& device_;
  cudaStream_t stream_ = nullptr;
  StreamMark begin_;
};

}  // namespace dsv4
