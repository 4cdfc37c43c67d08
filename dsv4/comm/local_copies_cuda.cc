#include <algorithm>

#include "dsv4/comm/local_copies.h"
#include "dsv4/device/device.h"
#include "dsv4/device/error.h"

namespace dsv4 {

LocalCopies::LocalCopies(Device& device, ShardId id, const SymmetricBytes& bytes)
    : device_(device), id_(id) {
  for (size_t half = 0; half < kSymmetricHalves; ++half) {
    symmetric_.halves[half] = Scratch(device.memory());
    symmetric_.halves[half].reserve(bytes[half]);
  }
}

void LocalCopies::fill(const TensorView& own, const TensorView& all, const ColumnEnds& ends) {
  const auto size = static_cast<size_t>(item_bytes(all.dtype));
  for (int rank = 0; rank < id_.world; ++rank) {
    if (rank == id_.rank) continue;
    const int64_t first = first_column(ends, rank), end = ends[static_cast<size_t>(rank)];
    const int64_t step = std::max<int64_t>(own.dim(1), 1);
    for (int64_t column = first; column < end && own.dim(1) > 0; column += step) {
      const int64_t count = std::min(step, end - column);
      cuda_check(
          cudaMemcpy2DAsync(all.slice(1, column, column + count).data,
                            static_cast<size_t>(all.row_stride()) * size, own.data,
                            static_cast<size_t>(own.row_stride()) * size,
                            static_cast<size_t>(count) * size, static_cast<size_t>(all.dim(0)),
                            cudaMemcpyDeviceToDevice, device_.stream()),
          "copy instead of an exchange");
    }
  }
}

void LocalCopies::gather(std::span<const Gathered> tensors, const Place&) {
  for (const Gathered& tensor : tensors) {
    if (tensor.by_rows()) {
      const TensorView& all = tensor.all;
      const auto size = static_cast<size_t>(item_bytes(all.dtype));
      cuda_check(cudaMemset2DAsync(all.data, static_cast<size_t>(all.row_stride()) * size, 0,
                                   static_cast<size_t>(all.dim(1)) * size,
                                   static_cast<size_t>(all.dim(0)), device_.stream()),
                 "zeros instead of rows of others");
      continue;
    }
    const TensorView own = tensor.all.slice(1, first_column(tensor.ends, id_.rank),
                                            tensor.ends[static_cast<size_t>(id_.rank)]);
    fill(own, tensor.all, tensor.ends);
  }
}

void LocalCopies::to_root(const TensorView& part, const TensorView& all, const ColumnEnds& ends,
                          const Place&) {
  fill(part, all, ends);
}

}  // namespace dsv4
