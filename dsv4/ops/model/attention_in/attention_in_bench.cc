// attention_in/KIND/t:TOKENS with the shapes of V4-Flash: a decode step of that many sequences in
// FP8, in which one of four (CSA) or one of 128 (HCA) closes an entry. Each call reads other
// weights. attention_in/KIND/k5/t:TOKENS has weights of 5 bits in place of FP8.

#include "dsv4/ops/model/attention_in/attention_in.h"

#include "bench/op_bench.h"
#include "bench/weight_pool.h"
#include "dsv4/base/bits.h"
#include "dsv4/base/error.h"

namespace dsv4 {
namespace {

constexpr int64_t kHidden = 4096, kRank = 1024, kHeads = 64, kIndexHeads = 64;
constexpr int kPageEntries = 64;

enum class Kind { kSwa, kHca, kCsa };

struct Case {
  const Kind kind;
  const int bits;  // of k-bit weights; 0: FP8
  const KvLayout row{};
  const IndexLayoutFp4 key{};
  const StateLayout state_layout, index_layout;
  bench::WeightPool pool;
  bench::Tensor x, q_norm, kv_norm, norm, ape, index_norm, index_ape, positions, freqs, window,
      rows, cu_tokens, start, slots, entry_rows, entry_positions, entries, keys, state, index_state,
      q, index_q, index_weights;
  AttentionInArgs args;

  Case(Kind which, int bits, int64_t t);
  void next();
  WeightView coded(int64_t n, int64_t k) {
    return pool.next(bits > 0 ? WeightFormat::kKbit : WeightFormat::kFp8Block, n, k, bits);
  }
  WeightView bf16(int64_t n, int64_t k) { return pool.next(WeightFormat::kBF16, n, k); }
  void compressor(CompressorWeights& w, const StateLayout& layout) {
    w.wkv = bf16(layout.columns(), kHidden), w.wgate = bf16(layout.columns(), kHidden);
  }
};

Case::Case(Kind which, int bits_, int64_t t)
    : kind(which),
      bits(bits_),
      state_layout{which == Kind::kCsa ? 4 : 128, KvLayout{}.width(), which == Kind::kCsa},
      index_layout{4, IndexLayoutFp4{}.width, true},
      x(DType::kBF16, {t, kHidden}),
      q_norm(DType::kBF16, {kRank}),
      kv_norm(DType::kBF16, {row.width()}),
      norm(DType::kBF16, {row.width()}),
      ape(DType::kF32, {state_layout.ratio, state_layout.columns()}),
      index_norm(DType::kBF16, {key.width}),
      index_ape(DType::kF32, {index_layout.ratio, index_layout.columns()}),
      positions(DType::kI32, {t}),
      freqs(DType::kF32, {row.rope / 2}),
      window(DType::kU8, {ceil_div(t, kPageEntries), row.page_bytes(kPageEntries)}),
      rows(DType::kI32, {t}),
      cu_tokens(DType::kI32, {t + 1}),
      start(DType::kI32, {t}),
      slots(DType::kI32, {t}),
      entry_rows(DType::kI32, {ceil_div(t, state_layout.ratio)}),
      entry_positions(DType::kI32, {ceil_div(t, state_layout.ratio)}),
      entries(DType::kU8, {ceil_div(t, kPageEntries), row.page_bytes(kPageEntries)}),
      keys(DType::kU8, {ceil_div(t, kPageEntries), key.page_bytes(kPageEntries)}),
      state(DType::kF32, {t, state_layout.floats()}),
      index_state(DType::kF32, {t, index_layout.floats()}),
      q(DType::kBF16, {t, kHeads, row.width()}),
      index_q(DType::kBF16, {t, kIndexHeads, key.width}),
      index_weights(DType::kBF16, {t, kIndexHeads}) {
  for (const bench::Tensor* tensor :
       {&x, &q_norm, &kv_norm, &norm, &ape, &index_norm, &index_ape, &freqs, &state, &index_state})
    bench::fill(*tensor);
  // Sequence i is at position ratio - 1 + i: every ratio-th of them closes an entry.
  for (const bench::Tensor* tensor : {&rows, &cu_tokens, &slots, &entry_rows})
    bench::fill_ascending(*tensor);
  for (const bench::Tensor* tensor : {&positions, &start})
    bench::fill_ascending(*tensor, state_layout.ratio - 1);
  args = {.x = x,
          .weights = {.q_norm = q_norm, .kv_norm = kv_norm},
          .positions = positions,
          .freqs = freqs,
          .window = {.pages = window, .layout = row, .page_entries = kPageEntries},
          .window_rows = rows,
          .q = q};
  if (kind != Kind::kSwa) {
    args.cu_tokens = cu_tokens, args.start = start, args.state_slots = slots;
    args.entry_rows = entry_rows, args.entry_positions = entry_positions;
    args.entries = {.pages = entries, .layout = row, .page_entries = kPageEntries};
    args.state = {.slots = state, .layout = state_layout};
    args.weights.compressor.ape = ape, args.weights.compressor.norm = norm;
  }
  if (kind == Kind::kCsa) {
    args.keys = {.pages = keys, .layout = key, .page_entries = kPageEntries};
    args.index_state = {.slots = index_state, .layout = index_layout};
    args.weights.indexer.compressor.ape = index_ape;
    args.weights.indexer.compressor.norm = index_norm;
    args.index_q = index_q, args.index_weights = index_weights;
  }
  next();
}

void Case::next() {
  AttentionInWeights& w = args.weights;
  w.wq_a = coded(kRank, kHidden);
  w.wq_b = coded(kHeads * row.width(), kRank);
  w.wkv = coded(row.width(), kHidden);
  if (kind != Kind::kSwa) compressor(w.compressor, state_layout);
  if (kind != Kind::kCsa) return;
  compressor(w.indexer.compressor, index_layout);
  w.indexer.wq_b = coded(kIndexHeads * key.width, kRank);
  w.indexer.weights_proj = bf16(kIndexHeads, kHidden);
}

const bool kRegistered = [] {
  const auto add = [](const char* name, Kind kind) {
    for (const int64_t t : bench::token_counts()) {
      bench::register_impls<AttentionInArgs>(fmt::format("attention_in/{}/t:{}", name, t),
                                             attention_in,
                                             [=] { return std::make_shared<Case>(kind, 0, t); });
      bench::register_impls<AttentionInArgs>(
          fmt::format("attention_in/{}/k5/t:{}", name, t), attention_in,
          [=] { return std::make_shared<Case>(kind, 5, t); }, Arch::kCuda);
    }
  };
  add("swa", Kind::kSwa);
  add("hca", Kind::kHca);
  add("csa", Kind::kCsa);
  return true;
}();

}  // namespace
}  // namespace dsv4
