// A CTA copies a piece in the widest words that its addresses allow. Enough loads are in flight to
// hide the latency of host memory: 8 a thread, 2048 threads an SM.

#include "dsv4/device/copy_pieces.h"
#include "dsv4/device/launch.cuh"

namespace dsv4 {
namespace {

constexpr int kThreads = 128, kLoads = 8;

template <class Word>
__device__ void copy_words(const CopyPiece& piece) {
  const auto* const from = reinterpret_cast<const Word*>(piece.from);
  auto* const to = reinterpret_cast<Word*>(piece.to);
  const int64_t count = piece.bytes / static_cast<int64_t>(sizeof(Word));
  for (int64_t first = 0; first < count; first += kThreads * kLoads) {
    Word words[kLoads];
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      const int64_t at = first + i * kThreads + threadIdx.x;
      if (at < count) words[i] = from[at];
    }
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      const int64_t at = first + i * kThreads + threadIdx.x;
      if (at < count) to[at] = words[i];
    }
  }
}

__global__ void __launch_bounds__(kThreads) copy_pieces_kernel(const CopyPiece* pieces) {
  const CopyPiece piece = pieces[blockIdx.x];
  const auto bits = reinterpret_cast<uintptr_t>(piece.to) |
                    reinterpret_cast<uintptr_t>(piece.from) | static_cast<uintptr_t>(piece.bytes);
  if (bits % 16 == 0) return copy_words<uint4>(piece);
  if (bits % 8 == 0) return copy_words<uint2>(piece);
  if (bits % 4 == 0) return copy_words<uint32_t>(piece);
  copy_words<uint8_t>(piece);
}

}  // namespace

void copy_pieces(Device& device, const CopyPiece* pieces, int64_t count) {
  launch(device, "copy_pieces", copy_pieces_kernel, {.grid = count, .block = kThreads}, pieces);
}

StreamMark::StreamMark() {
  cudaEvent_t event = nullptr;
  cuda_check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "mark of a stream");
  event_.reset(event);
}

void StreamMark::record(cudaStream_t stream) {
  cuda_check(cudaEventRecord(event_.get(), stream), "mark of a stream");
}

bool StreamMark::reached() const {
  const cudaError_t status = cudaEventQuery(event_.get());
  if (status == cudaErrorNotReady) return false;
  cuda_check(status, "mark of a stream");
  return true;
}

void StreamMark::wait() const {
  cuda_check(cudaEventSynchronize(event_.get()), "waiting for the GPU");
}

void StreamMark::let_wait(cudaStream_t stream) const {
  cuda_check(cudaStreamWaitEvent(stream, event_.get(), 0), "order of two streams");
}

CopyStream::CopyStream(Device& device) : device_(device) {
  cuda_check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "stream of copies");
}

CopyStream::~CopyStream() {
  cudaStreamSynchronize(stream_);
  cudaStreamDestroy(stream_);
}

void CopyStream::copy(const CopyPiece* pieces, int64_t count, StreamMark& end) {
  begin_.record(device_.stream());
  begin_.let_wait(stream_);
  Device there(device_.info(), stream_, TensorView());
  copy_pieces(there, pieces, count);
  end.record(stream_);
}

}  // namespace dsv4
