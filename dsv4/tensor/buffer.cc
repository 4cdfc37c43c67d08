#include "dsv4/tensor/buffer.h"

#include <algorithm>

#include "dsv4/base/bits.h"
#include "dsv4/base/error.h"

namespace dsv4 {

namespace {
constexpr int64_t kAlign = 64;
}

Buffer::Buffer(DType dtype, std::initializer_list<int64_t> shape) {
  const TensorMeta meta = TensorMeta::contiguous(dtype, shape);
  // calloc keeps fresh pages untouched (aligned_alloc + memset would commit them); the slack pays
  // for alignment.
  const auto bytes =
      static_cast<size_t>(align_up(std::max<int64_t>(meta.bytes(), 1), kAlign) + kAlign);
  memory_.reset(static_cast<std::byte*>(std::calloc(bytes, 1)));
  if (memory_ == nullptr)
    fail(ErrorCode::kResource, "cannot allocate {} bytes for {}", bytes, to_string(meta));
  const auto address = reinterpret_cast<uintptr_t>(memory_.get());
  const auto shift =
      static_cast<uintptr_t>(align_up(static_cast<int64_t>(address), kAlign)) - address;
  view_ = TensorView(meta, memory_.get() + shift);
}

}  // namespace dsv4
