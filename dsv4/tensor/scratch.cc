#include "dsv4/tensor/scratch.h"

#include <algorithm>

#include "dsv4/base/bits.h"

namespace dsv4 {
namespace {

constexpr int64_t kAlign = 64;
constexpr int64_t kChunkBytes = int64_t{8} << 20;

}  // namespace

TensorView Scratch::take(DType dtype, std::initializer_list<int64_t> shape) {
  const TensorMeta meta = TensorMeta::contiguous(dtype, shape);
  const int64_t bytes = align_up(std::max<int64_t>(meta.bytes(), 1), kAlign);
  while (chunk_ < chunks_.size() && used_ + bytes > chunks_[chunk_].view().numel()) {
    ++chunk_;
    used_ = 0;
  }
  if (chunk_ == chunks_.size()) {
    chunks_.emplace_back(DType::kU8, std::initializer_list<int64_t>{std::max(bytes, kChunkBytes)});
  }
  const TensorView view(meta, chunks_[chunk_].view().data + used_);
  used_ += bytes;
  return view;
}

int64_t Scratch::reserved_bytes() const {
  int64_t total = 0;
  for (const Buffer& chunk : chunks_) total += chunk.view().numel();
  return total;
}

}  // namespace dsv4
