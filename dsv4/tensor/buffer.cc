#include "dsv4/tensor/buffer.h"

namespace dsv4 {

Buffer::Buffer(DType dtype, std::initializer_list<int64_t> shape, Memory& memory) {
  const TensorMeta meta = TensorMeta::contiguous(dtype, shape);
  memory_ = {memory.allocate(meta.bytes()), ReleaseMemory{&memory}};
  view_ = TensorView(meta, memory_.get());
}

}  // namespace dsv4
