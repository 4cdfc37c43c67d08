// The warps of the kernel that bring x and codes.
//
// x: a lane of the consumers decodes block c of a unit, so the 16 columns of product t (of 8) are
// columns 4 t .. 4 t + 3 of the blocks c = 0 .. 3:
//
//   k of the product    2 c, 2 c + 1            8 + 2 c, 9 + 2 c
//   column of block c   4 t, 4 t + 1            4 t + 2, 4 t + 3
//
// A 16-byte chunk of x in shared memory is thus one word of each block. A thread loads 16 bytes of
// each block of a token, and what it stores are the columns of this 4 x 4 matrix of words: no
// instruction moves a word. Loads of the next unit are in flight while a unit is stored.

#pragma once

#include "dsv4/device/ptx/fence.cuh"
#include "dsv4/device/ptx/tensor_copy.cuh"
#include "dsv4/ops/gemm/sm90/kbit_wide/config.cuh"

namespace dsv4::gemm::kbit_wide {

// Codes of a unit, and scales with the first of each kScaleUnits.
template <class C>
__device__ void copy_codes(const Params& p, const Share& share, Shared<C>& shared, int unit) {
  using S = Shared<C>;
  ptx::Mbarrier& full = shared.codes_full[unit % S::kCodeStages];
  const int at = share.first_unit + unit;
  const bool with_scales = unit == 0 || at % kScaleUnits == 0;
  full.expect_tx(static_cast<uint32_t>(S::kCodeBytes + (with_scales ? S::kScaleBytes : 0)));
  full.arrive();
  ptx::cp_async_bulk_tensor_2d(ptx::smem_address(shared.codes[unit % S::kCodeStages]), &p.codes,
                               full, at * kUnitBlocks * C::K, share.first_row);
  if (with_scales)
    ptx::cp_async_bulk_tensor_2d(ptx::smem_address(shared.scales[share.scale_stage<C>(unit)]),
                                 &p.scales, full, at / kScaleUnits * kScaleUnits * kUnitBlocks,
                                 share.first_row);
}

// By one thread, before anything waits: the first codes.
template <class C>
__device__ void start_codes(const Params& p, const Share& share, Shared<C>& shared) {
  for (int unit = 0; unit < min(Shared<C>::kCodeStages, share.units); ++unit)
    copy_codes(p, share, shared, unit);
}

// The words of x that a thread has on their way: 16 bytes of each block of a unit, for one token of
// a round of 32. Tokens that do not exist are neither loaded nor stored: no other column of a
// product sees them.
template <class C>
class XRows {
 public:
  static constexpr int kRounds = C::kColumns / kBlock;
  // Rounds in flight: of one unit, or of as many as there are registers for.
  static constexpr int kAhead = C::kMovesRegisters ? kRounds : std::max(1, 4 / kRounds) * kRounds;
  static constexpr int kUnitsAtOnce = kAhead > kRounds ? kAhead / kRounds : 1;

  __device__ XRows(const Params& p, const Share& share)
      : left_(p.tokens - share.first_token), round_stride_(p.x_stride * kTokensOfRound) {
    const int thread = static_cast<int>(threadIdx.x) - kConsumers;
    const int lane = thread % kWarp;
    token_ = thread / kWarp * 8 + lane % 8;
    quarter_ = lane / 8;
    x_ = p.x + (share.first_token + token_) * p.x_stride + share.first_unit * kUnit + quarter_ * 8;
  }
  __device__ void load(int unit, int round, int into) {
    if (round * kTokensOfRound + token_ >= left_) return;
    const uint16_t* const from = x_ + round * round_stride_ + unit * kUnit;
#pragma unroll
    for (int c = 0; c < kUnitBlocks; ++c)
      words_[into][c] = __ldg(reinterpret_cast<const uint4*>(from + c * kBlock));
  }
  __device__ void store(unsigned char (&stage)[2][Shared<C>::kHalfBytes], int round,
                        int from) const {
    if (round * kTokensOfRound + token_ >= left_) return;
    const uint4(&w)[kUnitBlocks] = words_[from];
    unsigned char* const row = stage[quarter_ / 2] + (round * kTokensOfRound + token_) * 128;
    const int first = quarter_ % 2 * 4, swizzle = token_ % 8;
    const auto put = [&](int i, uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
      *reinterpret_cast<uint4*>(row + ((first + i) ^ swizzle) * 16) = make_uint4(a, b, c, d);
    };
    put(0, w[0].x, w[1].x, w[2].x, w[3].x);
    put(1, w[0].y, w[1].y, w[2].y, w[3].y);
    put(2, w[0].z, w[1].z, w[2].z, w[3].z);
    put(3, w[0].w, w[1].w, w[2].w, w[3].w);
  }

 private:
  static constexpr int kTokensOfRound = kProducers / 4;

  int left_, token_, quarter_;
  int64_t round_stride_;
  const uint16_t* x_;
  uint4 words_[kAhead][kUnitBlocks];
};

// By all producers. When x of a unit is used up, so are its codes: the consumers have read them
// before. So one thread copies codes again without a barrier of their own.
template <class C>
__device__ void produce(const Params& p, const Share& share, Shared<C>& shared) {
  using S = Shared<C>;
  using Rows = XRows<C>;
  constexpr int kRounds = Rows::kRounds, kAhead = Rows::kAhead;
  Rows rows(p, share);
#pragma unroll
  for (int i = 0; i < kAhead; ++i)
    if (i / kRounds < share.units) rows.load(i / kRounds, i % kRounds, i);
  sm90::RingCursor at;
#pragma unroll 1
  for (int first = 0; first < share.units; first += Rows::kUnitsAtOnce) {
#pragma unroll
    for (int u = 0; u < Rows::kUnitsAtOnce; ++u) {
      const int unit = first + u;
      if (unit >= share.units) break;
      shared.x_empty[at.stage].wait(at.phase ^ 1);
      const int next = unit - S::kXStages + S::kCodeStages;
      if (threadIdx.x == kConsumers && next >= S::kCodeStages && next < share.units)
        copy_codes(p, share, shared, next);
#pragma unroll
      for (int round = 0; round < kRounds; ++round) {
        const int slot = (u * kRounds + round) % kAhead, later = round + kAhead;
        rows.store(shared.x[at.stage], round, slot);
        if (unit + later / kRounds < share.units)
          rows.load(unit + later / kRounds, later % kRounds, slot);
      }
      ptx::fence_proxy_async();
      __syncwarp();  // all lanes have stored
      if (threadIdx.x % kWarp == 0) shared.x_full[at.stage].arrive();
      at.next(S::kXStages);
    }
  }
}

}  // namespace dsv4::gemm::kbit_wide
