// The ring of a warp: slots of 16 rows x 128 columns of the weight, copied in the order in which
// the warp multiplies them, over all rounds: units of columns, and of each unit all tiles. No other
// warp reads or writes it, so there are no barriers but those of the warp.

#pragma once

#include "dsv4/ops/gemm/cuda/kbit_stream/slots.cuh"

namespace dsv4::gemm::kbit_stream {

// kWhole: Params::whole.
template <int K, bool kWhole>
class Ring {
 public:
  static constexpr int kSlots = slots(K), kRowBytes = Slots<K>::kRowBytes;

  __device__ Ring(const Params& params, const Share& share, unsigned char* base)
      : params_(params),
        slots_(base, share.lane, params.row_bytes),
        tile_bytes_(static_cast<uint32_t>(kTileRows * params.row_bytes)),
        units_(share.end_unit - share.first_unit) {
    const Plan& plan = params.plan;
    const int first_tile = share.tile(plan, 0, share.row_group);
    left_ = units_ > 0 ? max(0, share.end_tile - first_tile) : 0;
    from_ = static_cast<uint32_t>(first_tile) * tile_bytes_ +
            static_cast<uint32_t>(share.first_unit * kRowBytes);
    next_round_ = static_cast<uint32_t>(plan.row_groups() * plan.group_tiles) * tile_bytes_ -
                  static_cast<uint32_t>(units_ * kRowBytes);
    begin_round();
  }

  __device__ void fill() {
#pragma unroll 1
    for (int i = 0; i < kSlots - 1; ++i) copy();
  }
  // The next slot in order, as an offset from the first one. The slot before it is copied again.
  __device__ int next() {
    ptx::cp_async_wait_group<kSlots - 2>();
    __syncwarp();  // all lanes' copies are there, and all have read the slot before
    copy();
    return slots_.turn_use();
  }

 private:
  // A group of copies for each call, also where nothing is left: next() counts groups.
  __device__ void copy() {
    const uint32_t to = slots_.turn_copy();
    if (left_ > 0) {
      if constexpr (kWhole) {
        slots_.copy_pieces(to, params_.codes, from_);
      } else {
        copy_words(to);
      }
      advance();
    }
    ptx::cp_async_commit_group();
  }

  // Words that do not exist are zeros.
  __device__ void copy_words(uint32_t to) const {
    const auto row_bytes = static_cast<uint32_t>(params_.row_bytes);
    const auto rows = static_cast<int>(static_cast<uint32_t>(params_.n) - from_ / row_bytes);
    const int bytes = params_.k / kBlock * 4 * K - static_cast<int>(from_ % row_bytes);
    slots_.copy_words(to, params_.codes + from_, params_.row_bytes, rows, bytes);
  }

  __device__ void begin_round() {
    tiles_ = index_ = min(params_.plan.group_tiles, left_);
    unit_ = units_;
  }
  // From a tile to the next one; then to the next unit of the first tile; then to the next round.
  __device__ void advance() {
    from_ += tile_bytes_;
    if (--index_ > 0) return;
    from_ += kRowBytes - static_cast<uint32_t>(tiles_) * tile_bytes_;
    index_ = tiles_;
    if (--unit_ > 0) return;
    from_ += next_round_;
    left_ -= params_.plan.row_groups() * params_.plan.group_tiles;
    begin_round();
  }

  const Params& params_;
  Slots<K> slots_;
  const uint32_t tile_bytes_;
  const int units_;
  uint32_t from_, next_round_;       // bytes of codes: of the next copy; from a round to the next
  int left_, tiles_, unit_, index_;  // tiles of this round and all later ones, of this round; units
                                     // and tiles that are left in them
};

}  // namespace dsv4::gemm::kbit_stream
