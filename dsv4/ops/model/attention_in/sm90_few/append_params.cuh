// Shapes, arguments and shared memory of the kernel of append.h.

#pragma once

#include <cmath>

#include "dsv4/device/ptx/mbarrier.cuh"
#include "dsv4/ops/model/attention_in/sm90_few/append.h"
#include "dsv4/ops/parts/compressor/pool.cuh"
#include "dsv4/ops/parts/kv_insert/packed_rows.cuh"

namespace dsv4::attention_in_kernel::sm90_few {

inline constexpr int kCtas = 4;  // of a cluster
inline constexpr int kThreads = compressor_kernel::kPoolThreads;
inline constexpr int kColumns = compressor_kernel::kPoolColumns;  // of a row that a CTA pools
inline constexpr int kWidth = kCtas * kColumns;                   // of window rows and entries
inline constexpr int kKeyWidth = kColumns;                        // of index keys
inline constexpr int kPairs = 32, kRotated = 2 * kPairs;          // at the end of every row
inline constexpr int kRun = 8;  // columns of a share of a sum of squares
inline constexpr int kShares = kWidth / kRun;
static_assert(kColumns == 128 && kShares == 2 * kWarp, "lane i has shares i and i + 32");

struct NormWeight {
  const void* data = nullptr;  // [width] f32|bf16
  bool is_f32 = false;

  NormWeight() = default;
  explicit NormWeight(const ConstTensorView& view)
      : data(view.data), is_f32(view.dtype == DType::kF32) {}
  __device__ float at(int i) const {
    return is_f32 ? static_cast<const float*>(data)[i]
                  : to_float(static_cast<const bf16*>(data)[i]);
  }
};

struct AppendParams {
  const bf16* kv;
  int64_t kv_stride;
  int num_tokens, num_sequences, num_entries;
  int entry_clusters, key_clusters;  // the clusters after them have window rows
  NormWeight kv_norm, entry_norm, key_norm;
  float norm_eps, key_factor;  // key_factor: of the Hadamard transform
  const int32_t* positions;
  const float* freqs;
  const int32_t *window_rows, *entry_rows, *entry_positions;
  PackedPages<KvLayout> window, entries;
  PackedPages<IndexLayoutFp4> keys;
  compressor_kernel::Inputs entry_state, key_state;
};

struct Shared {
  compressor_kernel::PoolShared pool;
  alignas(16) float pooled[kColumns];  // rounded to bf16
  alignas(16) float row[kWidth];       // normalized, rotated, rounded to bf16
  float2 rotation[kPairs];             // cos, sin
  uint32_t squares[2][kShares];        // f32: sums of kRun columns, from all CTAs of an entry
  ptx::Mbarrier received[2];           // of `squares`
  float warp_sums[2];
};

inline compressor_kernel::Inputs inputs_of(const StatePool& state, const CompressorWeights& weights,
                                           const AttentionInArgs& args, const ConstTensorView& kv,
                                           const ConstTensorView& gate) {
  return compressor_kernel::inputs_of({.layout = state.layout,
                                       .kv = kv,
                                       .gate = gate,
                                       .ape = weights.ape,
                                       .cu_tokens = args.cu_tokens,
                                       .start = args.start,
                                       .state_slots = args.state_slots,
                                       .state = state.slots,
                                       .out = {}});
}

inline AppendParams make_params(const AttentionInArgs& args, const AppendInputs& inputs) {
  AppendParams p{.kv = inputs.kv.as<bf16>(),
                 .kv_stride = inputs.kv.row_stride(),
                 .num_tokens = static_cast<int>(args.x.dim(0)),
                 .kv_norm = NormWeight(args.weights.kv_norm),
                 .norm_eps = args.norm_eps,
                 .key_factor = static_cast<float>(1 / std::sqrt(static_cast<double>(kKeyWidth))),
                 .positions = args.positions.as<int32_t>(),
                 .freqs = args.freqs.as<float>(),
                 .window_rows = args.window_rows.as<int32_t>(),
                 .window = PackedPages<KvLayout>(args.window)};
  if (args.state.layout.ratio == 0) return p;
  p.num_sequences = static_cast<int>(args.start.numel());
  p.num_entries = static_cast<int>(args.entry_rows.numel());
  p.entry_clusters = p.num_sequences;
  p.entry_norm = NormWeight(args.weights.compressor.norm);
  p.entry_rows = args.entry_rows.as<int32_t>();
  p.entry_positions = args.entry_positions.as<int32_t>();
  p.entries = PackedPages<KvLayout>(args.entries);
  p.entry_state =
      inputs_of(args.state, args.weights.compressor, args, inputs.entry_kv, inputs.entry_gate);
  if (args.index_state.layout.ratio == 0) return p;
  p.key_clusters = static_cast<int>(ceil_div(p.num_sequences, kCtas));
  p.key_norm = NormWeight(args.weights.indexer.compressor.norm);
  p.keys = PackedPages<IndexLayoutFp4>(args.keys);
  p.key_state = inputs_of(args.index_state, args.weights.indexer.compressor, args, inputs.key_kv,
                          inputs.key_gate);
  return p;
}

inline int64_t num_clusters(const AppendParams& p) {
  return p.entry_clusters + p.key_clusters + ceil_div(p.num_tokens, kCtas);
}

}  // namespace dsv4::attention_in_kernel::sm90_few
