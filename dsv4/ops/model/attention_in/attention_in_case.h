// What tests, emulated tests and the benchmark of attention_in.h share: the fp64 oracle and the
// builder of random arguments.

#pragma once

#include <algorithm>
#include <numeric>
#include <vector>

#include "dsv4/ops/model/attention_in/attention_in.h"
#include "dsv4/ops/model/hc_boundary/hc_boundary_case.h"
#include "dsv4/ops/parts/rope/rope.h"
#include "tests/harness/fill.h"

namespace dsv4 {

// For args without a boundary. Call before the op, which updates states in place. Rows are the
// values that are read back from the pools, without those of negative ids.
struct AttentionInWant {
  std::vector<double> q;                       // [t, h, d]
  std::vector<double> window, entries, keys;   // [rows that are written, width]
  std::vector<double> state, index_state;      // of the whole pools
  std::vector<double> index_q, index_weights;  // [n, index_heads, index_dim], [t, index_heads]
};

AttentionInWant attention_in_oracle(const Context& context, const AttentionInArgs& args);

}  // namespace dsv4

namespace dsv4::test {

using Ints = std::vector<int64_t>;

struct TokenRun {
  int64_t start, count;
};

struct AttentionInShape {
  std::vector<TokenRun> runs;
  int ratio = 0;                               // 0: a layer without compression
  bool has_index = false;                      // an indexer, and entries that overlap
  bool select = false;                         // indexer queries are wanted
  int64_t index_first = 0, index_tokens = -1;  // of these tokens alone; -1: of all
  int64_t spare = 0;                           // tokens and entries that no run fills
  int64_t hidden = 256, rank = 192, heads = 4, index_heads = 2;
  KvLayout row{.nope = 64, .rope = 64};
  int index_dim = 64;
  bool boundary = false;  // x is computed inside
  int window_page = 7, entry_page = 4;
  bool in_order = false;  // rows ascend
  int state_spare = 3;    // tokens that a sequence can be taken back

  int64_t run_tokens() const {
    return std::accumulate(runs.begin(), runs.end(), int64_t{0},
                           [](int64_t sum, const TokenRun& run) { return sum + run.count; });
  }
  int64_t tokens() const { return run_tokens() + spare; }
};

// Builds the arguments of one layer. Memory: test::Arena or bench::Arena. weight(coded, n, k): the
// next weight, in the format under test or in bf16.
template <class Memory, class Random, class Weight>
class AttentionInBuilder {
 public:
  AttentionInArgs args;

  AttentionInBuilder(Memory& memory, Random& random, const AttentionInShape& shape,
                     Numerics numerics, const Weight& weight)
      : memory_(memory),
        random_(random),
        s_(shape),
        weight_(weight),
        packed_(numerics == Numerics::kOfficial),
        dtype_(packed_ ? DType::kBF16 : DType::kF32) {
    tokens();
    if (s_.ratio > 0) entries();
    if (s_.has_index) indexer();
  }

 private:
  TensorView normal(DType dtype, std::initializer_list<int64_t> shape, double sigma = 1,
                    double mean = 0) {
    const TensorView view = memory_.input(dtype, shape);
    fill_normal(view, random_, sigma, mean);
    return view;
  }
  TensorView ints(const Ints& values) {
    const TensorView view = memory_.input(DType::kI32, {static_cast<int64_t>(values.size())});
    for (size_t i = 0; i < values.size(); ++i)
      view.as<int32_t>()[i] = static_cast<int32_t>(values[i]);
    return view;
  }
  // Values of the sequences, which in another order would not fit the tokens.
  TensorView ordered(const Ints& values) {
    const TensorView view = ints(values);
    memory_.keep_order(view);
    return view;
  }
  // `count` different rows of a pool of `rows`, then -1.
  TensorView distinct_rows(int64_t count, int64_t padding, int64_t rows) {
    Ints all(static_cast<size_t>(rows));
    std::iota(all.begin(), all.end(), 0);
    for (size_t i = s_.in_order ? 0 : all.size(); i > 1; --i)
      std::swap(all[i - 1], all[static_cast<size_t>(random_.below(static_cast<int64_t>(i)))]);
    all.resize(static_cast<size_t>(count));
    all.insert(all.end(), static_cast<size_t>(padding), -1);
    return ints(all);
  }
  // What is not written stays 0x38 in every byte.
  TensorView pages(int64_t count, int64_t packed_bytes, int64_t floats) {
    const TensorView view = packed_ ? memory_.inout(DType::kU8, {count, packed_bytes})
                                    : memory_.inout(DType::kF32, {count, floats});
    std::fill_n(view.data, view.bytes(), std::byte{0x38});
    return view;
  }
  KvPool make_pool(int64_t rows, int page_entries) {
    const int64_t count = rows / page_entries + 2;
    return {.pages = pages(count, s_.row.page_bytes(page_entries),
                           int64_t{page_entries} * s_.row.width()),
            .layout = s_.row,
            .page_entries = page_entries};
  }

  void tokens();
  void entries();
  void indexer();
  CompressorWeights compressor_weights(const StateLayout& layout) {
    return {.wkv = weight_(false, layout.columns(), s_.hidden),
            .wgate = weight_(false, layout.columns(), s_.hidden),
            .ape = normal(DType::kF32, {layout.ratio, layout.columns()}),
            .norm = normal(dtype_, {layout.width}, 0.2, 1)};
  }
  StatePool state_pool(int width) {
    const StateLayout layout{s_.ratio, width, s_.has_index, s_.state_spare};
    const auto slots = static_cast<int64_t>(s_.runs.size()) + 1;
    const TensorView state = memory_.inout(DType::kF32, {slots, layout.floats()});
    fill_normal(state, random_);
    return {.slots = state, .layout = layout};
  }

  Memory& memory_;
  Random& random_;
  const AttentionInShape& s_;
  const Weight& weight_;
  const bool packed_;
  const DType dtype_;
};

template <class Memory, class Random, class Weight>
void AttentionInBuilder<Memory, Random, Weight>::tokens() {
  const int64_t t = s_.tokens(), d = s_.row.width();
  Ints positions;
  for (const TokenRun& run : s_.runs)
    for (int64_t i = 0; i < run.count; ++i) positions.push_back(run.start + i);
  positions.resize(static_cast<size_t>(t), 0);
  const std::vector<float> freqs = rope_frequencies(s_.row.rope, 10000, {});
  const TensorView table = memory_.input(DType::kF32, {static_cast<int64_t>(freqs.size())});
  std::copy(freqs.begin(), freqs.end(), table.as<float>());
  if (s_.boundary) {
    args.boundary = random_boundary(
        memory_, random_, {.t = t, .d = s_.hidden, .dtype = dtype_, .y = dtype_, .norm = dtype_});
    args.x = args.boundary.x;
  } else {
    args.x = normal(dtype_, {t, s_.hidden});
  }
  args.weights = {.wq_a = weight_(true, s_.rank, s_.hidden),
                  .wq_b = weight_(true, s_.heads * d, s_.rank),
                  .wkv = weight_(true, d, s_.hidden),
                  .q_norm = normal(dtype_, {s_.rank}, 0.2, 1),
                  .kv_norm = normal(dtype_, {d}, 0.2, 1)};
  // Kernels may read it before they wait for the previous kernel, as other weights.
  const ConstTensorView& norm = args.weights.q_norm;
  memory_.keep_order({norm, const_cast<std::byte*>(norm.data)});
  args.positions = ints(positions);
  args.freqs = table;
  args.window = make_pool(t + 5, s_.window_page);
  args.window_rows = distinct_rows(s_.run_tokens(), s_.spare, args.window.num_rows());
  args.q = memory_.output(dtype_, {t, s_.heads, d});
}

template <class Memory, class Random, class Weight>
void AttentionInBuilder<Memory, Random, Weight>::entries() {
  Ints cu{0}, start, slots, positions;
  for (const TokenRun& run : s_.runs) {
    cu.push_back(cu.back() + run.count);
    start.push_back(run.start);
    slots.push_back(run.count > 0 ? static_cast<int64_t>(slots.size()) + 1 : -1);
    for (int64_t w = run.start / s_.ratio; w < (run.start + run.count) / s_.ratio; ++w)
      positions.push_back(w * s_.ratio);
  }
  const auto closed = static_cast<int64_t>(positions.size());
  positions.resize(positions.size() + static_cast<size_t>(s_.spare), 0);
  args.cu_tokens = ordered(cu);
  args.start = ordered(start);
  args.state_slots = ordered(slots);
  args.entries = make_pool(closed + 3, s_.entry_page);
  args.entry_rows = distinct_rows(closed, s_.spare, args.entries.num_rows());
  args.entry_positions = ints(positions);
  args.state = state_pool(s_.row.width());
  args.weights.compressor = compressor_weights(args.state.layout);
}

template <class Memory, class Random, class Weight>
void AttentionInBuilder<Memory, Random, Weight>::indexer() {
  const IndexLayoutFp4 layout{s_.index_dim};
  const int page_entries = args.entries.page_entries;
  args.keys = {.pages = pages(args.entries.pages.dim(0), layout.page_bytes(page_entries),
                              int64_t{page_entries} * s_.index_dim),
               .layout = layout,
               .page_entries = page_entries};
  args.index_state = state_pool(s_.index_dim);
  args.weights.indexer = {.wq_b = weight_(true, s_.index_heads * s_.index_dim, s_.rank),
                          .weights_proj = weight_(false, s_.index_heads, s_.hidden),
                          .compressor = compressor_weights(args.index_state.layout)};
  if (!s_.select) return;
  const int64_t wanted = s_.index_tokens < 0 ? s_.tokens() : s_.index_tokens;
  args.index_q = memory_.output(dtype_, {wanted, s_.index_heads, s_.index_dim});
  args.index_first = s_.index_first;
  args.index_weights = memory_.output(dtype_, {s_.tokens(), s_.index_heads});
}

template <class Memory, class Random, class Weight>
AttentionInArgs random_attention_in(Memory& memory, Random& random, const AttentionInShape& shape,
                                    Numerics numerics, const Weight& weight) {
  return AttentionInBuilder(memory, random, shape, numerics, weight).args;
}

}  // namespace dsv4::test
