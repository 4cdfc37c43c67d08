// The state of a consumer thread: its registers, its position in the pipeline, the barriers that it
// waits for; and the two matrix products of an iteration:
//
//   S^T = K Q^T       [64 keys, heads]      one key tile per warpgroup, 16 keys per warp
//   O^T += V^T P^T    [512 dims, heads]     256 dims per warpgroup, both key tiles
//
// softmax.cuh computes P between the two; kernel.cuh has the loop.

#pragma once

#include "dsv4/device/ptx/smem_desc.cuh"
#include "dsv4/device/ptx/wgmma.cuh"
#include "dsv4/ops/model/sparse_mla/sm90_fp8/operands.cuh"

namespace dsv4::sparse_mla_kernel::sm90_fp8 {

// The position of a consumer, in one register: a phase bit for each key tile of a pair, one for the
// KV pipeline and one for work tiles; kHasMax, set once a key of the work tile has set the row max;
// and in the bits from kKeyTile on the number of key tiles left in the work tile.
enum State : uint32_t {
  kPhaseOfKeyTile = 1,
  kPhaseOfKv = 4,
  kPhaseOfTile = 8,
  kHasMax = 16,
  kKeyTile = 32
};

template <class KvFormat, int kHeads>
struct Consumer {
  using S = Smem<KvFormat, kHeads>;
  // kDepth: steps whose decoded operands are in registers. kAhead: steps whose codes are loaded
  // in advance from shared memory. With 64 heads one more of either spills.
  static constexpr bool kTight = kHeads == 64 && KvFormat::kRopeIsValue;
  static constexpr int kDepth = kTight ? 2 : 3, kAhead = kHeads < 64 || kTight ? 2 : 1;

  const Params& p;
  S& smem;
  float out[kDimTiles][kHeads / 2];  // O^T; [t]: rows of dims 256 wg + 64 t + 16 warp + 0 .. 15
  float row_sum[2];                  // of P of the warp's keys; heads as in for_each_head
  uint32_t state = 0;                // State
  int first_stage = 0;               // of the pair of key tiles

  __device__ Consumer(const Params& params, S& memory) : p(params), smem(memory) {}

  __device__ void begin_tile() {
#pragma unroll
    for (int t = 0; t < kDimTiles; ++t) {
      for (int i = 0; i < kHeads / 2; ++i) out[t][i] = 0.f;
    }
    for (float& sum : row_sum) sum = 0.f;
    state = state % kHasMax + static_cast<uint32_t>(tile().work.key_tiles()) * kKeyTile;
  }

  __device__ int bit(uint32_t flag) const {
    return (state & flag) != 0 ? 1 : 0;
  }
  // The phase of the barriers of key tile 0 or 1 of the pair.
  __device__ int phase(int key_tile) const {
    return bit(kPhaseOfKeyTile << key_tile);
  }
  __device__ int key_tiles_left() const {
    return static_cast<int>(state / kKeyTile);
  }
  // Key tiles of this iteration (1 or 2), and whether it is the last one of the work tile.
  __device__ int key_tiles() const {
    return min(key_tiles_left(), 2);
  }
  __device__ bool is_last() const {
    return key_tiles_left() <= 2;
  }
  __device__ TileState<kHeads>& tile() const {
    return smem.tiles[bit(kPhaseOfTile)];
  }

  // The ring index of stage i of the pair, 0 <= i < 4.
  __device__ int stage(int i) const {
    const int stage = first_stage + i;
    return stage < S::kStages ? stage : stage - S::kStages;
  }
  __device__ void wait_kv_full(int i) {
    const bool wraps = first_stage + i >= S::kStages;
    smem.kv_full[stage(i)].wait(bit(kPhaseOfKv) ^ (wraps ? 1 : 0));
  }
  __device__ void advance() {
    const int tiles = key_tiles();
    first_stage += 2 * tiles;
    if (first_stage >= S::kStages) first_stage -= S::kStages, state ^= kPhaseOfKv;
    state ^= tiles > 1 ? 3 * kPhaseOfKeyTile : kPhaseOfKeyTile;
    state -= static_cast<uint32_t>(tiles) * kKeyTile;
  }

  // Signals that this thread's last QK^T of the work tile is complete.
  __device__ void release_q() const {
    smem.q_empty.arrive();
  }
  // Waits until the row sums of all warps are stored, and all requests for the fallback are made.
  __device__ void wait_row_sum_full() const {
    smem.row_sum_full.wait(bit(kPhaseOfTile));
  }
  // Waits until both warpgroups have used the P that this one is about to overwrite.
  __device__ void wait_p_empty() {
    const Lane at = this_lane();
    smem.p_empty[at.wg].wait(phase(at.wg) ^ 1);
  }

  // Called if a value of this work tile does not fit f16.
  __device__ void request_fp32_fallback() const {
    tile().overflow = tile().work.index + 1;
  }
};

// Reads m[i], the value of head 8 (i / 2) + 2j + i % 2. values: in the order of row_max_at().
template <int kHeads>
__device__ void read_heads(const float* values, float (&m)[kHeads / 4]) {
  const Lane at = this_lane();
  const float* from = values + kHeads / 4 * at.j;
  if constexpr (kHeads == 8) {
    m[0] = from[0], m[1] = from[1];
  } else {
#pragma unroll
    for (int i = 0; i < kHeads / 4; i += 4) {
      const float4 four = *reinterpret_cast<const float4*>(from + i);
      m[i] = four.x, m[i + 1] = four.y, m[i + 2] = four.z, m[i + 3] = four.w;
    }
  }
}

// --- S^T = K Q^T ---

// Descriptor of q, dims 16 step .. + 15. A constant: the compiler would otherwise keep all of them
// in registers.
template <class KvFormat, int kHeads>
__device__ constexpr uint64_t q_desc(int step) {
  return ptx::make_smem_desc_128B(kSmemBase + step / 4 * Smem<KvFormat, kHeads>::kTileBytes +
                                  step % 4 * 32);
}

// S of this warp's 16 keys. While the codes of step i are decoded, those of the next kAhead steps
// are loaded and earlier steps are multiplied. RoPE is first; as a value too (V4) it must fit f16.
template <class KvFormat, int kHeads>
__device__ void multiply_qk(Consumer<KvFormat, kHeads>& c, int stage, float (&s)[kHeads / 2],
                            KeyState (&key_state)[2]) {
  using C = Consumer<KvFormat, kHeads>;
  const Lane at = this_lane();
  const KeyOperand<KvFormat> keys(at, ptx::smem_address(c.smem.kv[stage]), 16 * (at.warp % 2));
  constexpr int kSteps = KvFormat::kCodes / 32, kStepsOfGroup = KvFormat::kGroup / 32;
  const uint8_t* first = c.smem.kv[stage] + (16 * (at.warp % 2) + at.g) * KvFormat::kStride;
  const KeyScales<KvFormat> scales[2] = {{first}, {first + 8 * KvFormat::kStride}};
  Fragments a[C::kDepth];
  Codes codes[C::kAhead + 1];
#pragma unroll
  for (int i = 0; i < C::kAhead; ++i) keys.load(i, codes[i]);
  __nv_bfloat162 largest{};  // magnitude of the RoPE values
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    for (int k = 0; k < 2; ++k) keys.load_rope(2 * i + k, a[i][k]);
    ptx::wgmma_fence();
    for (int k = 0; k < 2; ++k) {
      ptx::Wgmma<__nv_bfloat16, kHeads>::run(
          s, a[i][k], q_desc<KvFormat, kHeads>(KvFormat::kCodes / 16 + 2 * i + k), 1);
    }
    ptx::wgmma_commit_group();
    if constexpr (KvFormat::kRopeIsValue) {
      for (const Codes& r : a[i]) {
        for (const uint32_t pair : r) largest = __hmax2(largest, __habs2(ptx::as_bf162(pair)));
      }
    }
  }
#pragma unroll
  for (int i = 0; i < kSteps; ++i) {
    const uint32_t pair[2] = {scales[0].broadcast(i / kStepsOfGroup),
                              scales[1].broadcast(i / kStepsOfGroup)};
    if (i + C::kAhead < kSteps) keys.load(i + C::kAhead, codes[(i + C::kAhead) % (C::kAhead + 1)]);
    ptx::wgmma_wait_group<C::kDepth - 1>();
    keys.decode(codes[i % (C::kAhead + 1)], pair, a[(i + 2) % C::kDepth]);
    ptx::wgmma_fence();
    for (int k = 0; k < 2; ++k)
      ptx::Wgmma<__half, kHeads>::run(s, a[(i + 2) % C::kDepth][k],
                                      q_desc<KvFormat, kHeads>(2 * i + k), 1);
    ptx::wgmma_commit_group();
  }
  if (KvFormat::kRopeIsValue && !fits_f16(largest)) c.request_fp32_fallback();
  const uint8_t* states =
      c.smem.key_state[stage] + 16 * (this_lane().warp % 2) + ptx::lane_id() / 4;
  for (int r = 0; r < 2; ++r) key_state[r] = static_cast<KeyState>(states[8 * r]);
  ptx::wgmma_wait_group<0>();
  ptx::wgmma_fence_operand(s);
}

// S of invalid keys becomes -inf.
template <class KvFormat, int kHeads>
__device__ void mask(Consumer<KvFormat, kHeads>& c, const KeyState (&key_state)[2],
                     float (&s)[kHeads / 2]) {
  if (__all_sync(~0u, key_state[0] == kValid && key_state[1] == kValid)) return;
  const bool low = key_state[0] != kInvalid, high = key_state[1] != kInvalid;
  if (key_state[0] == kOverflow || key_state[1] == kOverflow) c.request_fp32_fallback();
#pragma unroll
  for (int n = 0; n < kHeads / 8; ++n) {
    if (!low) s[4 * n] = s[4 * n + 1] = -INFINITY;
    if (!high) s[4 * n + 2] = s[4 * n + 3] = -INFINITY;
  }
}

// --- O^T += V^T P^T ---

// V of the warpgroup's dims in a stage, and its scales.
template <class KvFormat, int kHeads>
__device__ ValueOperand<KvFormat> values_of(const Consumer<KvFormat, kHeads>& c, const Lane& at,
                                            int stage) {
  return ValueOperand<KvFormat>(at, ptx::smem_address(c.smem.kv[stage]) + at.wg * kDimTiles * 64);
}
template <class KvFormat, int kHeads>
__device__ const uint4* scales_of(const Consumer<KvFormat, kHeads>& c, const Lane& at, int stage) {
  const __half* scales =
      &c.smem.v_scales[stage][at.wg * kDimTiles * 64 / KvFormat::kGroup][8 * at.j];
  return reinterpret_cast<const uint4*>(scales);
}

template <class KvFormat, int kHeads>
__device__ void rescale_output(Consumer<KvFormat, kHeads>& c, int key_tile) {
  float factors[kHeads / 4];
  read_heads<kHeads>(c.smem.rescale[key_tile], factors);
#pragma unroll
  for (int t = 0; t < kDimTiles; ++t) {
    for (int i = 0; i < kHeads / 2; ++i) c.out[t][i] *= factors[i / 4 * 2 + i % 2];
  }
}

// Whether dim tile t of the warpgroup is RoPE.
template <class KvFormat>
__device__ bool is_rope(const Lane& at, int t) {
  return KvFormat::kRopeIsValue && t == kDimTiles - 1 && at.wg == 1;
}

// Registers between shared memory and PV, in steps of 32 keys and 64 dims. RoPE values take
// twice the registers of codes and have no scales: keys 16 .. 31 use the scales' registers.
template <class KvFormat, int kHeads>
struct ValuePipeline {
  using C = Consumer<KvFormat, kHeads>;
  static constexpr int kStepsOfGroup = KvFormat::kGroup / 64;  // steps with the same scales
  static_assert(!KvFormat::kRopeIsValue || kStepsOfGroup == 1);

  Fragments a[C::kDepth];
  Codes codes[C::kAhead + 1];
  uint4 scales_of_group[C::kAhead + 1];

  __device__ uint4& scales(int step) {
    return scales_of_group[step / kStepsOfGroup % (C::kAhead + 1)];
  }
  // values, from: V and scales in the stage of this step.
  __device__ void load(const Lane& at, const ValueOperand<KvFormat>& values, const uint4* from,
                       int step) {
    const int t = step % kDimTiles;
    Codes& to = codes[step % (C::kAhead + 1)];
    if (is_rope<KvFormat>(at, t)) {
      values.load_rope(at, to, scales(step));
    } else {
      values.load(t, to);
      if (step % kStepsOfGroup == 0) scales(step) = from[t / kStepsOfGroup * (kStageKeys / 8)];
    }
  }
  __device__ const Fragments& decode(const Lane& at, int step) {
    const Codes& from = codes[step % (C::kAhead + 1)];
    Fragments& operand = a[step % C::kDepth];
    if (is_rope<KvFormat>(at, step % kDimTiles)) {
      ValueOperand<KvFormat>::decode_rope(from, scales(step), operand);
    } else {
      ValueOperand<KvFormat>::decode(from, scales(step), operand);
    }
    return operand;
  }
};

// Waits for the PV products of a key tile and releases its P.
template <class KvFormat, int kHeads>
__device__ void finish_pv(Consumer<KvFormat, kHeads>& c, int key_tile) {
  ptx::wgmma_wait_group<0>();
#pragma unroll
  for (int t = 0; t < kDimTiles; ++t) ptx::wgmma_fence_operand(c.out[t]);
  c.smem.p_empty[key_tile].arrive();
}

// PV of one key tile of the pair: two stages of 32 keys.
template <int kKeyTileOfPair, class KvFormat, int kHeads>
__device__ void multiply_pv(Consumer<KvFormat, kHeads>& c) {
  using C = Consumer<KvFormat, kHeads>;
  ValuePipeline<KvFormat, kHeads> o;
  const Lane at = this_lane();
  constexpr int kFirst = 2 * kKeyTileOfPair;
  // The threads that stored P had waited for the entries, so waiting for P covers the entries.
  c.smem.p_full[kKeyTileOfPair].wait(c.phase(kKeyTileOfPair));
  if (c.smem.max_update[kKeyTileOfPair] == MaxUpdate::kRescale) rescale_output(c, kKeyTileOfPair);
  constexpr uint64_t kP = ptx::make_smem_desc_128B(
      kSmemBase + (C::S::kQOrPartialTiles + kKeyTileOfPair) * C::S::kTileBytes);
  constexpr int kSteps = 2 * kDimTiles;
  const int stages[2] = {c.stage(kFirst), c.stage(kFirst + 1)};
  const ValueOperand<KvFormat> values[2] = {values_of(c, at, stages[0]),
                                            values_of(c, at, stages[1])};
  const uint4* scales[2] = {scales_of(c, at, stages[0]), scales_of(c, at, stages[1])};
  const auto load = [&](int step) {
    o.load(at, values[step / kDimTiles], scales[step / kDimTiles], step);
  };
#pragma unroll
  for (int step = 0; step < C::kAhead; ++step) load(step);
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    const int half = step / kDimTiles, t = step % kDimTiles;
    if (step + C::kAhead < kSteps) load(step + C::kAhead);
    ptx::wgmma_wait_group<C::kDepth - 1>();
    const Fragments& a = o.decode(at, step);
    ptx::wgmma_fence();
    for (int k = 0; k < 2; ++k)
      ptx::Wgmma<__half, kHeads>::run(c.out[t], a[k], kP + 4 * half + 2 * k, 1);
    ptx::wgmma_commit_group();
    if (t + 1 < kDimTiles) continue;
    c.smem.kv_empty[stages[half]].arrive();
  }
  finish_pv(c, kKeyTileOfPair);
}

}  // namespace dsv4::sparse_mla_kernel::sm90_fp8
