#include "dsv4/ops/model/attention_in/attention_in.h"

#include "dsv4/base/error.h"

namespace dsv4::attention_in_kernel {

// Up to 64 tokens under kOfficial on Hopper: FP8 weights of queries and keys, BF16 weights of
// compressors, rows of the released models. Up to 8 tokens with k4-e4m3 or k5-e4m3 for FP8.
DSV4_IMPL(AttentionInArgs, sm90_few)
DSV4_IMPL(AttentionInArgs, parts)

constexpr Impl<AttentionInArgs> kTable[] = {
#if DSV4_CUDA
    {"sm90_few", Arch::kSm90, true, sm90_few::reject, sm90_few::run},
    {"parts", Arch::kCuda, true, accept_all<AttentionInArgs>, parts::run},
#endif
    {"parts", Arch::kCpu, true, accept_all<AttentionInArgs>, parts::run},
};

}  // namespace dsv4::attention_in_kernel

namespace dsv4 {
namespace {

void check_shape(const char* what, const WeightView& w, int64_t n, int64_t k) {
  check(what, w);
  DSV4_CHECK(w.n == n && w.k == k, "{}: want [{}, {}], got [{}, {}]", what, n, k, w.n, w.k);
}

void check_compressor(const char* what, const CompressorWeights& w, const StatePool& state,
                      int64_t columns, int64_t width) {
  const StateLayout& layout = state.layout;
  DSV4_CHECK(layout.width == width, "{}: entries of {} for rows of {}", what, layout.width, width);
  check_shape(what, w.wkv, layout.columns(), columns);
  check_shape(what, w.wgate, layout.columns(), columns);
  expect("norm", w.norm, {DType::kF32, DType::kBF16}, {layout.width});
}

void check_entries(const AttentionInArgs& args) {
  Dim n("n");
  const int64_t columns = args.x.dim(1);
  expect("entry_rows", args.entry_rows, {DType::kI32}, {n});
  expect("entry_positions", args.entry_positions, {DType::kI32}, {n});
  check("entries", args.entries);
  check_compressor("compressor", args.weights.compressor, args.state, columns,
                   args.entries.layout.width());
  if (args.index_state.layout.ratio == 0) return;
  check("keys", args.keys);
  check_compressor("indexer.compressor", args.weights.indexer.compressor, args.index_state, columns,
                   args.keys.layout.width);
}

void check_index_queries(const AttentionInArgs& args) {
  Dim t("t", args.x.dim(0)), n("n"), heads("index_heads"), width("index_dim");
  const IndexerWeights& w = args.weights.indexer;
  expect("index_q", args.index_q, {DType::kF32, DType::kBF16}, {n, heads, width});
  DSV4_CHECK(args.index_first >= 0 && args.index_first + *n <= *t,
             "index_q of {} tokens from {} on, of {}", *n, args.index_first, *t);
  expect("index_weights", args.index_weights, {DType::kF32, DType::kBF16}, {t, heads});
  DSV4_CHECK(args.index_q.is_contiguous(), "index_q must be contiguous, got {}",
             to_string(args.index_q));
  check_shape("indexer.wq_b", w.wq_b, *heads * *width, args.weights.wq_a.n);
  check_shape("weights_proj", w.weights_proj, *heads, args.x.dim(1));
}

void check(const AttentionInArgs& args) {
  Dim t("t"), columns("D"), h("h"), d("d"), num_pairs("num_pairs");
  const AttentionInWeights& w = args.weights;
  expect("x", args.x, {DType::kF32, DType::kBF16}, {t, columns});
  check_boundary_of(args.x, args.boundary);
  expect("positions", args.positions, {DType::kI32}, {t});
  expect("freqs", args.freqs, {DType::kF32}, {num_pairs});
  expect("window_rows", args.window_rows, {DType::kI32}, {t});
  expect("q", args.q, {DType::kF32, DType::kBF16}, {t, h, d});
  DSV4_CHECK(args.q.is_contiguous(), "q must be contiguous, got {}", to_string(args.q));
  check_shape("wq_a", w.wq_a, w.wq_a.n, *columns);
  check_shape("wq_b", w.wq_b, *h * *d, w.wq_a.n);
  check("window", args.window);
  check_shape("wkv", w.wkv, args.window.layout.width(), *columns);
  expect("q_norm", w.q_norm, {DType::kF32, DType::kBF16}, {w.wq_a.n});
  expect("kv_norm", w.kv_norm, {DType::kF32, DType::kBF16}, {w.wkv.n});
  DSV4_CHECK(args.state.layout.ratio > 0 || args.index_state.layout.ratio == 0,
             "an indexer with ratio {} without entries", args.index_state.layout.ratio);
  if (args.state.layout.ratio > 0) check_entries(args);
  if (args.index_q.rank > 0) check_index_queries(args);
}

// Weights, x and results; the products.
Cost cost(const AttentionInArgs& args) {
  const AttentionInWeights& w = args.weights;
  const auto t = static_cast<double>(args.x.dim(0));
  Cost cost{.bytes = static_cast<double>(args.x.bytes() + args.q.bytes())};
  if (is_given(args.boundary)) cost += hc_boundary.cost(args.boundary);
  const auto add_for = [&](double tokens, const WeightView& weight) {
    cost.bytes += static_cast<double>(weight.bytes());
    cost.weight_bytes += static_cast<double>(weight.bytes());
    cost.flops += 2.0 * tokens * static_cast<double>(weight.n * weight.k);
  };
  const auto add = [&](const WeightView& weight) { add_for(t, weight); };
  const auto add_rows = [&](int64_t rows, int64_t row_bytes) {
    cost.bytes += static_cast<double>(rows * row_bytes);
  };
  add(w.wq_a), add(w.wq_b), add(w.wkv);
  add_rows(args.window_rows.dim(0), args.window.row_bytes());
  if (args.state.layout.ratio > 0) {
    add(w.compressor.wkv), add(w.compressor.wgate);
    add_rows(args.entry_rows.dim(0), args.entries.row_bytes());
  }
  if (args.index_state.layout.ratio > 0) {
    const int64_t width = args.keys.layout.width;
    add(w.indexer.compressor.wkv), add(w.indexer.compressor.wgate);
    add_rows(args.entry_rows.dim(0),
             args.keys.packed() ? args.keys.layout.page_bytes(1) : 4 * width);
  }
  if (args.index_q.rank > 0) {
    add_for(static_cast<double>(args.index_q.dim(0)), w.indexer.wq_b);
    add(w.indexer.weights_proj);
    cost.bytes += static_cast<double>(args.index_q.bytes() + args.index_weights.bytes());
  }
  return cost;
}

}  // namespace

constinit const Op<AttentionInArgs> attention_in{"attention_in", attention_in_kernel::kTable, check,
                                                 cost};

}  // namespace dsv4
