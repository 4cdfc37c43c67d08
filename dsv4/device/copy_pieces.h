// Many copies in one launch, inside and between device memory and page-locked host memory. A prefix
// of 100,000 tokens lies in 100,000 pieces, for which copies one by one take a tenth of a second.

#pragma once

#include "dsv4/device/device.h"
#include "dsv4/tensor/copy_piece.h"

namespace dsv4 {

// pieces: [count] in memory that the device reads, valid until the stream has come to this
void copy_pieces(Device& device, const CopyPiece* pieces, int64_t count);

}  // namespace dsv4
