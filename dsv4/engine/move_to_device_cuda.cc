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
#include <optional>
#include <thread>

#include "dsv4/base/bits.h"
#include "dsv4/base/error.h"
#include "dsv4/device/device.h"
#include "dsv4/device/error.h"
#include "dsv4/device/event.h"
#include "dsv4/engine/device_model.h"
#include "dsv4/engine/device_weights.h"
#include "dsv4/engine/expert_places.h"
#include "dsv4/engine/pack_experts.h"

namespace dsv4 {
namespace {

constexpr int64_t kPieceBytes = int64_t{8} << 20;
constexpr int kBuffers = 3;  // of a thread
constexpr int64_t kMaxThreads = 8;

struct Piece {
  const std::byte* from;
  std::byte* to;
  int64_t bytes;
};

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

// Cuts `bytes` bytes at `from` into pieces.
void cut(const std::byte* from, std::byte* to, int64_t bytes, std::vector<Piece>& pieces) {
  for (int64_t at = 0; at < bytes; at += kPieceBytes)
    pieces.push_back({from + at, to + at, std::min(kPieceBytes, bytes - at)});
}

// What one thread does at a time: a piece of a tensor, or all tensors of an expert, which then
// become its images.
struct Job {
  std::vector<Piece> pieces;         // without `expert`
  const ImageJob* expert = nullptr;  // its tensors go through the staging memory of the thread

  int64_t bytes() const {
    if (expert != nullptr) return expert->gate_up.bytes() + expert->down.bytes();
    return pieces.front().bytes;
  }
};

// One stream of copies.
class Lane {
 public:
  // staging: device memory for the tensors of an expert, and behind them for its images if they go
  // to `stored`
  Lane(Device& device, std::byte* block, std::byte* staging, const StoredImages* stored)
      : buffers_(DType::kU8, {kBuffers, kPieceBytes}, device.pinned()),
        block_(block),
        staging_(staging),
        stored_(stored) {
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
  void run(const Job& job, Reader& reader) {
    for (const Piece& piece : job.pieces) send(piece, reader);
    if (job.expert == nullptr) return;
    std::vector<Piece> pieces;
    for (const TensorPlace& place : staged_tensors(*job.expert))
      cut(place.from.data, staging_ + place.offset, place.from.bytes(), pieces);
    for (const Piece& piece : pieces) send(piece, reader);
    if (job.expert->stored_at) {
      stored_->pack(stream_, *job.expert, staging_, staging_ + packed_offset(*job.expert));
    } else {
      pack_expert(stream_, *job.expert, staging_, block_);
    }
  }
  void finish() { cuda_check(cudaStreamSynchronize(stream_), "copy of weights"); }

 private:
  Buffer buffers_;
  static int64_t packed_offset(const ImageJob& job) {
    return align_up(job.stored_bytes(), kPlaceAlign);
  }

  std::byte *const block_, *const staging_;
  const StoredImages* const stored_;
  cudaStream_t stream_ = nullptr;
  Event sent_[kBuffers];
  int next_ = 0;
};

// The pieces shared out among threads; the first error of any of them is thrown at the end.
class Upload {
 public:
  Upload(const Checkpoint& checkpoint, Device& device, std::byte* block, std::vector<Job> jobs,
         int64_t staging_bytes, const StoredImages* stored)
      : checkpoint_(checkpoint),
        device_(device),
        block_(block),
        stored_(stored),
        jobs_(std::move(jobs)),
        threads_(std::clamp<int64_t>(std::thread::hardware_concurrency(), 1, kMaxThreads)),
        staging_(staging_bytes == 0
                     ? Buffer()
                     : Buffer(DType::kU8, {threads_, staging_bytes}, device.memory())) {
    device.wait();  // staging_ is zeroed on the device's stream
  }

  void run(const LoadProgress& progress, int64_t total) {
    std::vector<std::thread> workers;
    for (int64_t i = 0; i < threads_; ++i) workers.emplace_back([this, i] { work(i); });
    while (running_.load() < threads_ || active_.load() > 0) {
      progress(done_.load(), total);
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    for (std::thread& worker : workers) worker.join();
    progress(done_.load(), total);
    if (error_) std::rethrow_exception(error_);
  }

 private:
  std::byte* staging(int64_t thread) const {
    return staging_.view().empty() ? nullptr : staging_.view().row<std::byte>(thread);
  }

  void work(int64_t thread) {
    ++active_;
    ++running_;
    try {
      Lane lane(device_, block_, staging(thread), stored_);
      Reader reader(checkpoint_);
      for (size_t i = next_++; i < jobs_.size() && !stop_; i = next_++) {
        lane.run(jobs_[i], reader);
        done_ += jobs_[i].bytes();
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
  std::byte* const block_;
  const StoredImages* const stored_;  // null: all images stay in the block
  const std::vector<Job> jobs_;
  const int64_t threads_;
  const Buffer staging_;  // [threads, bytes of an expert's tensors], while experts are packed
  std::atomic<size_t> next_{0};
  std::atomic<int64_t> done_{0};
  std::atomic<int> active_{0}, running_{0};
  std::atomic<bool> stop_{false};
  std::mutex mutex_;
  std::exception_ptr error_;
};

std::vector<Job> jobs_of(const std::vector<TensorPlace>& copies,
                         const std::vector<ImageJob>& image_jobs, std::byte* block) {
  std::vector<Piece> pieces;
  for (const TensorPlace& place : copies)
    cut(place.from.data, block + place.offset, place.from.bytes(), pieces);
  std::vector<Job> jobs;
  for (const ImageJob& expert : image_jobs) jobs.push_back({.expert = &expert});
  for (const Piece& piece : pieces) jobs.push_back({.pieces = {piece}});
  return jobs;
}

}  // namespace

Buffer allocate_weights(Device& device, int64_t bytes, int64_t cache_bytes) {
  check_room(bytes, cache_bytes, device.free_bytes(), device.info().name);
  return {DType::kU8, {bytes}, device.memory()};
}

void move_to_device(Model& model, std::shared_ptr<Device> device, const LoadProgress& progress,
                    int64_t cache_bytes, Context steps, const ExpertMemory* outside) {
  steps.device = device.get();
  const std::vector<PackedExperts> packed = model.choose_layouts(steps);
  std::vector<TensorPlace> places = place_tensors(model), copies = places;
  std::vector<ImageJob> image_jobs = take_image_jobs(packed, copies);
  std::optional<StoredImages> stored;
  int64_t bytes = placed_bytes(places), staging = largest_expert(image_jobs);
  if (outside != nullptr) {
    if (const auto store = make_expert_store(model, *device, packed, *outside, steps)) {
      send_to_store(*store, image_jobs);
      stored.emplace(model, *store, *device);
      places = copies = place_tensors(model);
      staging = align_up(staging, kPlaceAlign) + stored->packed_bytes();
    }
  }
  // The staging memory is free again before the cache is allocated.
  Buffer block = allocate_weights(*device, placed_bytes(places),
                                  std::max(cache_bytes, int64_t{kMaxThreads} * staging));
  device->wait();  // the block is zeroed on the device's stream, the copies come on others
  Upload(model.checkpoint(), *device, block.view().data,
         jobs_of(copies, image_jobs, block.view().data), staging, stored ? &*stored : nullptr)
      .run(progress, bytes);
  redirect_tensors(model, places, block.view().data);
  if (stored) stored->set_exponents(model, *device);
  find_expert_exponents(model, *device);
  model.place(std::move(device), std::move(block));
}

}  // namespace dsv4
