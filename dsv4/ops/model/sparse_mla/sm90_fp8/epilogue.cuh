// The epilogue of a work tile, by the consumers: O^T leaves the registers, as output or as the
// partial of a split. With z_j = scale log2(e) S_j:
//   out = O / (row_sum + 2^(sink log2(e) - m))   O = sum_j P_j V_j,  P_j = 2^(z_j - m)
//   lse = ln(2) (log2(row_sum) + m)              row_sum = sum_j P_j
// With an inverse RoPE the last 64 dims of out are rotated by minus the query's position.
//
// The two warpgroups store their halves of the dims independently.

#pragma once

#include "dsv4/ops/model/sparse_mla/sm90_fp8/combine.cuh"
#include "dsv4/ops/model/sparse_mla/sm90_fp8/consumer.cuh"
#include "dsv4/ops/model/sparse_mla/sm90_fp8/fallback_f32.cuh"

namespace dsv4::sparse_mla_kernel::sm90_fp8 {

// In the RoPE tile a lane's rows are dims g and g + 8, in other tiles 2g and 2g + 1. Lanes of even
// and odd g exchange one of them; then they have dims g and g + 1, or g + 7 and g + 8.
template <class KvFormat, int kHeads>
__device__ void pair_rope_dims(Consumer<KvFormat, kHeads>& c) {
  const Lane at = this_lane();
  if (!KvFormat::kRopeIsValue || at.wg == 0) return;
  const bool odd = at.g % 2 != 0;
#pragma unroll
  for (int i = 0; i < kHeads / 4; ++i) {
    float &a = c.out[kDimTiles - 1][i / 2 * 4 + i % 2],
          &b = c.out[kDimTiles - 1][i / 2 * 4 + i % 2 + 2];
    const float other = __shfl_xor_sync(~0u, odd ? a : b, 4);
    a = odd ? other : a, b = odd ? b : other;
  }
}

// Computes the inverse RoPE of the query's position, while q or the first keys are on their way.
// Each pair is that of four lanes (first_dim).
template <class KvFormat, int kHeads>
__device__ void set_rotation(const Consumer<KvFormat, kHeads>& c, const WorkTile& work) {
  const Params& p = c.p;
  const Lane at = this_lane();
  if (!KvFormat::kRopeIsValue || p.freqs == nullptr || at.wg == 0) return;
  const int pair = (first_dim<KvFormat>(at, kDimTiles - 1) - KvFormat::kCodes) / 2;
  const int query = work.request * static_cast<int>(p.s_q.divisor) + work.query;
  __syncwarp();  // all lanes have stored the previous tile
  if (at.j == 0) {
    const auto position = static_cast<float>(p.positions[query]);
    c.smem.rotation[pair] = rotation_of(position, p.freqs[pair], true);
  }
  __syncwarp();
}

// For a query without splits: computes Smem::out_scale and stores lse and max_logits.
template <class KvFormat, int kHeads>
__device__ void finish_softmax(const Consumer<KvFormat, kHeads>& c, const WorkTile& work) {
  const Lane at = this_lane();
  const Params& p = c.p;
  const TileState<kHeads>& tile = c.tile();
  const int head = at.warp * kWarp + at.lane;
  if (head < min(kHeads, p.heads - work.first_head)) {
    const float row_sum = row_sum_of(tile, head);
    const float row_max = tile.row_max[row_max_at<kHeads>(head)];
    const float seen_max = from_ordered_int(tile.seen_max[head]);
    if (at.wg == 0) store_lse(p, work, head, row_max, row_sum, seen_max);
    c.smem.out_scale[at.wg][head] =
        output_scale(p, row_max, row_sum, seen_max, sink_of(p, work, head));
  }
  ptx::barrier_sync(kBarrierWarpgroup + at.wg, kWarpgroup);
}

// Stores O. Eight lanes write 32 contiguous bytes of a head (bf16).
template <class T, class KvFormat, int kHeads>
__device__ void store_output_as(const Consumer<KvFormat, kHeads>& c, const WorkTile& work) {
  const Lane at = this_lane();
  const Params& p = c.p;
  const int heads = p.heads - work.first_head;
  auto* to = static_cast<T*>(p.out) + offset_of(p.out_at, work, 2 * at.j);
  int dims[kDimTiles];
  for (int t = 0; t < kDimTiles; ++t) dims[t] = first_dim<KvFormat>(at, t);
#pragma unroll
  for (int i = 0; i < kHeads / 4; ++i) {
    const int head = 8 * (i / 2) + i % 2 + 2 * at.j, r = 4 * (i / 2) + i % 2;
    const float scale = c.smem.out_scale[at.wg][head];
    if (head < heads) {
#pragma unroll
      for (int t = 0; t < kDimTiles; ++t) {
        const float low = c.out[t][r] * scale, high = c.out[t][r + 2] * scale;
        store_dims(to + dims[t], low, high, rotation_at(p, c.smem, at, t));
      }
    }
    to += (i % 2 == 0 ? 1 : 7) * p.out_at.head;
  }
}

template <class KvFormat, int kHeads>
__device__ void store_output(const Consumer<KvFormat, kHeads>& c, const WorkTile& work) {
  c.p.out_f32 ? store_output_as<float>(c, work) : store_output_as<bf16>(c, work);
}

// Sends scaled O of this split, in f16, to the CTAs that combine it.
template <class KvFormat, int kHeads>
__device__ void store_partial(const Consumer<KvFormat, kHeads>& c) {
  const Params& p = c.p;
  const Lane at = this_lane();
  const int mine = split_of_cta(p);
  constexpr int kAll = num_fragments(kHeads), kAtOnce = fragments_at_once(kHeads);
  uint2* const first = partial_of(p, c.smem, mine) + thread_index();
  const float* scales = c.smem.out_scale[at.wg] + 2 * at.j;
  uint2* to = first;
  int cta = 0;
#pragma unroll
  for (int u = 0; u < kAll; u += kAtOnce) {
    if (to == first + p.fragments_per_cta * kConsumers) to = first, ++cta;
    const float2 scale = *reinterpret_cast<const float2*>(scales + u / kDimTiles * 8);
    uint2 fragments[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const float* v = c.out[(u + i) % kDimTiles] + u / kDimTiles * 4;
      fragments[i] = {ptx::pack_f16x2(v[0] * scale.x, v[2] * scale.x),
                      ptx::pack_f16x2(v[1] * scale.y, v[3] * scale.y)};
    }
    if (cta == mine) {  // only this thread reads it
      for (int i = 0; i < kAtOnce; ++i) to[i * kConsumers] = fragments[i];
    } else {
      for (int i = 0; i < kAtOnce; ++i)
        ptx::st_async(to + i * kConsumers, cta, fragments[i], c.smem.partials_full);
    }
    to += kAtOnce * kConsumers;
  }
}

template <class KvFormat, int kHeads>
__device__ void finish_tile(Consumer<KvFormat, kHeads>& c) {
  const Params& p = c.p;
  c.wait_row_sum_full();
  const WorkTile work = c.tile().work;
  if (c.tile().overflow == work.index + 1) return finish_tile_f32(p, c.smem, c.tile().work);
  pair_rope_dims(c);
  const auto store = [&] { store_output(c, work); };
  if (work.num_splits > 1)
    return combine_splits(p, c.smem, work, true, store, [&] { store_partial(c); });
  if (split_of_cta(p) != 0) return;
  finish_softmax(c, work);
  store();
}

}  // namespace dsv4::sparse_mla_kernel::sm90_fp8
