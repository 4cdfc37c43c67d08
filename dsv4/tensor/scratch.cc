#include "dsv4/tensor/scratch.h"

#include <algorithm>

#include "dsv4/base/bits.h"
#include "dsv4/base/error.h"

namespace dsv4 {
namespace {

constexpr int64_t kAlign = 256;
constexpr int64_t kChunkBytes = int64_t{8} << 20;

}  // namespace

Scratch Scratch::counting() {
  Scratch scratch;
  scratch.counting_ = true;
  return scratch;
}

Scratch Scratch::borrowing(const TensorView& bytes) {
  Scratch scratch;
  scratch.memory_ = nullptr;
  if (bytes.empty()) return scratch;
  expect("workspace", bytes, {DType::kU8}, {bytes.dim(0)});
  DSV4_CHECK(reinterpret_cast<uintptr_t>(bytes.data) % kAlign == 0,
             "the workspace is at {}, not at a multiple of {} bytes",
             static_cast<const void*>(bytes.data), kAlign);
  scratch.borrowed_ = bytes;
  return scratch;
}

std::byte* Scratch::chunk_data() const {
  return borrows() ? borrowed_.data : chunks_[chunk_].view().data;
}

int64_t Scratch::room() const {
  if (borrows()) return borrowed_.empty() ? 0 : borrowed_.numel();
  return chunks_.empty() ? 0 : chunk_bytes(chunk_);
}

void Scratch::reserve(int64_t bytes) {
  DSV4_CHECK(chunks_.empty() && !counting_ && !borrows(), "{} bytes are there already",
             reserved_bytes());
  if (bytes > 0) chunks_.emplace_back(DType::kU8, std::initializer_list<int64_t>{bytes}, *memory_);
}

TensorView Scratch::take(DType dtype, std::initializer_list<int64_t> shape) {
  const TensorMeta meta = TensorMeta::contiguous(dtype, shape);
  const int64_t bytes = align_up(std::max<int64_t>(meta.bytes(), 1), kAlign);
  const int64_t offset = live_;
  live_ += bytes;
  peak_ = std::max(peak_, live_);
  if (counting_) return {meta, unmapped_address(offset)};
  if (used_ + bytes > room()) next_chunk(bytes);
  const TensorView view(meta, chunk_data() + used_);
  used_ += bytes;
  return view;
}

// Switches to the next chunk, which must hold `bytes`. Chunks after the current one contain no live
// view, so a chunk that is too small is replaced by one of at least twice its size: needs that grow
// a little in every step reallocate rarely.
void Scratch::next_chunk(int64_t bytes) {
  if (borrows())
    fail(ErrorCode::kResource, "a workspace of {} bytes is too small: {} are wanted", room(),
         live_);
  const size_t next = chunks_.empty() ? 0 : chunk_ + 1;
  int64_t want = std::max(bytes, kChunkBytes);
  if (next == chunks_.size()) {
    chunks_.emplace_back(DType::kU8, std::initializer_list<int64_t>{want}, *memory_);
  } else if (chunk_bytes(next) < bytes) {
    want = std::max(want, 2 * chunk_bytes(next));
    chunks_[next] = Buffer();  // freed before the larger one is allocated
    chunks_[next] = Buffer(DType::kU8, {want}, *memory_);
  }
  chunk_ = next;
  used_ = 0;
}

TensorView Scratch::taken() const {
  DSV4_CHECK(!borrows() && chunks_.size() == 1, "{} bytes are in {} chunks", live_, chunks_.size());
  return chunks_.front().view().slice(0, 0, used_);
}

int64_t Scratch::reserved_bytes() const {
  if (borrows()) return room();
  int64_t total = 0;
  for (const Buffer& chunk : chunks_) total += chunk.view().numel();
  return total;
}

}  // namespace dsv4
