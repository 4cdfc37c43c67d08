// The slots of a warp in shared memory, 16 rows x 128 columns of codes each, and how its lanes copy
// one. They are filled and used in turn; what comes into the next one is the ring's business
// (ring.cuh, ../kbit_experts/ring.cuh). No other warp reads or writes them.

#pragma once

#include "dsv4/device/ptx/cp_async.cuh"
#include "dsv4/ops/gemm/cuda/kbit_stream/config.cuh"

namespace dsv4::gemm::kbit_stream {

template <int K>
class Slots {
 public:
  static constexpr int kSlots = slots(K), kSlotBytes = slot_bytes(K);
  static constexpr int kRowBytes = kUnit / 8 * K;  // of a slot
  static constexpr int kRowPieces = kRowBytes / 16, kPieces = kSlotBytes / 16;
  static constexpr int kLanePieces = (kPieces + kWarp - 1) / kWarp;

  // row_bytes: from a row of codes to the next
  __device__ Slots(unsigned char* base, int lane, int64_t row_bytes)
      : base_(ptx::smem_address(base)), lane_(lane) {
#pragma unroll
    for (int j = 0; j < kLanePieces; ++j) {
      const int i = lane_ + j * kWarp;
      piece_[j] = static_cast<uint32_t>(i / kRowPieces) * static_cast<uint32_t>(row_bytes) +
                  static_cast<uint32_t>(i % kRowPieces * 16);
    }
  }

  // Where the next copy goes, and what the next use reads, as an offset from the first slot.
  __device__ uint32_t turn_copy() {
    return base_ + static_cast<uint32_t>(turn(copy_));
  }
  __device__ int turn_use() {
    return turn(use_);
  }

  // A slot that is there whole. codes + from: 16-byte aligned
  __device__ void copy_pieces(uint32_t to, const unsigned char* codes, uint32_t from) const {
    to += static_cast<uint32_t>(lane_ * 16);
#pragma unroll
    for (int j = 0; j < kLanePieces; ++j) {
      if (kPieces % kWarp == 0 || j + 1 < kLanePieces || lane_ < kPieces % kWarp)
        ptx::cp_async_16(to + j * kWarp * 16, codes + (from + piece_[j]));
    }
  }
  // The first `rows` rows of it and of each the first `bytes`; other words are zeros.
  __device__ void copy_words(uint32_t to, const unsigned char* from, int64_t row_bytes, int rows,
                             int bytes) const {
    for (int i = lane_; i < kSlotBytes / 4; i += kWarp) {
      const int row = i / (kRowBytes / 4), word = i % (kRowBytes / 4);
      ptx::cp_async_4_zfill(to + i * 4, from + row * row_bytes + word * 4,
                            row < rows && word * 4 < bytes);
    }
  }

 private:
  // The offset of a slot, which becomes that of the slot after it.
  static __device__ int turn(int& slot) {
    const int now = slot;
    slot = now == (kSlots - 1) * kSlotBytes ? 0 : now + kSlotBytes;
    return now;
  }

  const uint32_t base_;
  const int lane_;
  int copy_ = 0, use_ = 0;       // bytes
  uint32_t piece_[kLanePieces];  // where the lane's pieces of a slot begin
};

}  // namespace dsv4::gemm::kbit_stream
