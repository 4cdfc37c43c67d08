// Weights from files to the device: several threads, each with a few page-locked buffers and a
// stream of its own. A piece of a tensor is read into a buffer and sent off while the next is read.

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <exception>
#include <map>
#include <mutex>
#include <thread>

#include "dsv4/base/error.h"
#include "dsv4/device/device.h"
#include "dsv4/device/error.h"
#include "dsv4/device/event.h"
#include "dsv4/engine/device_model.h"
#include "dsv4/engine/device_weights.h"

namespace dsv4 {
namespace {

constexpr int64_t kPieceBytes = int64_t{8} << 20;
constexpr int kBuffers = 3;  // of a thread
constexpr unsigned kMaxThreads = 8;

struct Piece {
  const std::byte* from;
  std::byte* to;
  int64_t bytes;
};

std::vector<Piece> cut(const std::vector<TensorPlace>& places, std::byte* block) {
  std::vector<Piece> pieces;
  for (const TensorPlace& place : places) {
    const int64_t bytes = place.from.bytes();
    for (int64_t at = 0; at < bytes; at += kPieceBytes)
      pieces.push_back(
          {place.from.data + at, block + place.offset + at, std::min(kPieceBytes, bytes - at)});
  }
  return pieces;
}

// Files opened once per thread.
class Reader {
 public:
  explicit Reader(const Checkpoint& checkpoint) : checkpoint_(checkpoint) {}
  ~Reader() {
    for (const auto& [path, fd] : open_) close(fd);
  }
  Reader(const Reader&) = delete;
  Reader& operator=(const Reader&) = delete;

  void read(const Piece& piece, std::byte* to) {
    const auto place = checkpoint_.place(piece.from);
    if (!place) {
      std::memcpy(to, piece.from, static_cast<size_t>(piece.bytes));
      return;
    }
    const int fd = descriptor(place->path);
    for (int64_t done = 0; done < piece.bytes;) {
      const ssize_t got =
          pread(fd, to + done, static_cast<size_t>(piece.bytes - done), place->offset + done);
      if (got < 0 && errno == EINTR) continue;
      if (got <= 0)
        fail(ErrorCode::kIo, "cannot read {}: {}", place->path,
             got == 0 ? "it became shorter" : std::strerror(errno));
      done += got;
    }
  }

 private:
  int descriptor(std::string_view path) {
    const auto [at, fresh] = open_.emplace(path, -1);
    if (fresh) at->second = ::open(std::string(path).c_str(), O_RDONLY | O_CLOEXEC);
    if (at->second < 0) {
      open_.erase(at);
      fail(ErrorCode::kIo, "cannot open {}: {}", path, std::strerror(errno));
    }
    return at->second;
  }

  const Checkpoint& checkpoint_;
  std::map<std::string_view, int> open_;
};

// One stream of copies.
class Lane {
 public:
  explicit Lane(Device& device) : buffers_(DType::kU8, {kBuffers, kPieceBytes}, device.pinned()) {
    cuda_check(cudaSetDevice(device.info().ordinal), "cudaSetDevice");
    cuda_check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreate");
  }
  ~Lane() {
    cudaStreamSynchronize(stream_);  // the buffers go away with this
    cudaStreamDestroy(stream_);
  }
  Lane(const Lane&) = delete;
  Lane& operator=(const Lane&) = delete;

  void send(const Piece& piece, Reader& reader) {
    const int slot = next_++ % kBuffers;
    sent_[slot].wait();
    std::byte* const buffer = buffers_.view().data + slot * kPieceBytes;
    reader.read(piece, buffer);
    cuda_check(cudaMemcpyAsync(piece.to, buffer, static_cast<size_t>(piece.bytes),
                               cudaMemcpyHostToDevice, stream_),
               "copy of weights");
    sent_[slot].record(stream_);
  }
  void finish() { cuda_check(cudaStreamSynchronize(stream_), "copy of weights"); }

 private:
  Buffer buffers_;
  cudaStream_t stream_ = nullptr;
  Event sent_[kBuffers];
  int next_ = 0;
};

// The pieces shared out among threads; the first error of any of them is thrown at the end.
class Upload {
 public:
  Upload(const Checkpoint& checkpoint, Device& device, std::vector<Piece> pieces)
      : checkpoint_(checkpoint), device_(device), pieces_(std::move(pieces)) {}

  void run(const LoadProgress& progress, int64_t total) {
    const unsigned threads = std::clamp(std::thread::hardware_concurrency(), 1u, kMaxThreads);
    std::vector<std::thread> workers;
    for (unsigned i = 0; i < threads; ++i) workers.emplace_back([this] { work(); });
    while (running_.load() < static_cast<int>(threads) || active_.load() > 0) {
      progress(done_.load(), total);
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    for (std::thread& worker : workers) worker.join();
    progress(done_.load(), total);
    if (error_) std::rethrow_exception(error_);
  }

 private:
  void work() {
    ++active_;
    ++running_;
    try {
      Lane lane(device_);
      Reader reader(checkpoint_);
      for (size_t i = next_++; i < pieces_.size() && !stop_; i = next_++) {
        lane.send(pieces_[i], reader);
        done_ += pieces_[i].bytes;
      }
      lane.finish();
    } catch (...) {
      const std::lock_guard lock(mutex_);
      if (!error_) error_ = std::current_exception();
      stop_ = true;
    }
    --active_;
  }

  const Checkpoint& checkpoint_;
  Device& device_;
  const std::vector<Piece> pieces_;
  std::atomic<size_t> next_{0};
  std::atomic<int64_t> done_{0};
  std::atomic<int> active_{0}, running_{0};
  std::atomic<bool> stop_{false};
  std::mutex mutex_;
  std::exception_ptr error_;
};

}  // namespace

Buffer allocate_weights(Device& device, int64_t bytes, int64_t cache_bytes) {
  check_room(bytes, cache_bytes, device.free_bytes(), device.info().name);
  return {DType::kU8, {bytes}, device.memory()};
}

void move_to_device(Model& model, std::shared_ptr<Device> device, const LoadProgress& progress,
                    int64_t cache_bytes) {
  const std::vector<TensorPlace> places = place_tensors(model);
  const int64_t bytes = placed_bytes(places);
  Buffer block = allocate_weights(*device, bytes, cache_bytes);
  device->wait();  // the block is zeroed on the device's stream, the copies come on others
  Upload(model.checkpoint(), *device, cut(places, block.view().data)).run(progress, bytes);
  redirect_tensors(model, places, block.view().data);
  model.place(std::move(device), std::move(block));
}

}  // namespace dsv4
