// The ring of a warp (kbit_stream/slots.cuh) over all its blocks: of each the units of columns, of
// a unit all tiles. Copies of the next block begin while this one is multiplied.

#pragma once

#include "dsv4/ops/gemm/cuda/kbit_experts/config.cuh"
#include "dsv4/ops/gemm/cuda/kbit_stream/slots.cuh"

namespace dsv4::gemm::kbit_experts {

// kSides: 2 for gate and up. kWhole: Params::whole.
template <int K, int kSides, bool kWhole>
class Ring {
 public:
  using Slots = kbit_stream::Slots<K>;

  __device__ Ring(const Params& params, const Share& share, unsigned char* base)
      : params_(params),
        share_(share),
        slots_(base, share.lane, params.row_bytes),
        walk_(params.plan, share),
        tiles_(kSides == 2 ? 2 : params.plan.row_tiles) {
    if (walk_.left > 0) begin_item();
    begin_unit();
  }

  __device__ void fill() {
#pragma unroll 1
    for (int i = 0; i < Slots::kSlots - 1; ++i) copy();
  }
  // The next slot in order, as an offset from the first one. The slot before it is copied again.
  __device__ int next() {
    ptx::cp_async_wait_group<Slots::kSlots - 2>();
    __syncwarp();  // all lanes' copies are there, and all have read the slot before
    copy();
    return slots_.turn_use();
  }

 private:
  // A group of copies for each call, also where nothing is left: next() counts groups.
  __device__ void copy() {
    const uint32_t to = slots_.turn_copy();
    if (walk_.left > 0) {
      const unsigned char* const codes =
          kSides == 2 && tile_ == 1 ? codes_ + params_.codes_to_up : codes_;
      if constexpr (kWhole) {
        slots_.copy_pieces(to, codes, from_);
      } else {
        copy_words(to, codes);
      }
      advance();
    }
    ptx::cp_async_commit_group();
  }
  // Words that do not exist are zeros.
  __device__ void copy_words(uint32_t to, const unsigned char* codes) const {
    const int row = walk_.row(params_.plan, share_) + (kSides == 2 ? 0 : tile_ * kTileRows);
    const int bytes = params_.k / kBlock * 4 * K - walk_.unit * Slots::kRowBytes;
    slots_.copy_words(to, codes + from_, params_.row_bytes, params_.n - row, bytes);
  }

  __device__ void begin_item() {
    codes_ = params_.codes + params_.tiles[walk_.item].matrix * params_.matrix_bytes;
  }
  __device__ void begin_unit() {
    tile_ = 0;
    from_ = static_cast<uint32_t>(walk_.row(params_.plan, share_)) *
                static_cast<uint32_t>(params_.row_bytes) +
            static_cast<uint32_t>(walk_.unit * Slots::kRowBytes);
  }
  __device__ void advance() {
    if constexpr (kSides == 1) from_ += static_cast<uint32_t>(kTileRows * params_.row_bytes);
    if (++tile_ < tiles_) return;
    if (walk_.next_unit(params_.plan, share_)) begin_item();
    begin_unit();
  }

  const Params& params_;
  const Share& share_;
  Slots slots_;
  Walk walk_;
  const int tiles_;
  int tile_;
  const unsigned char* codes_ = nullptr;  // of the item's matrix, that of gate
  uint32_t from_;                         // bytes of them, of the next copy
};

}  // namespace dsv4::gemm::kbit_experts
