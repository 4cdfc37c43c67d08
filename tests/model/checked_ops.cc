#include "tests/model/checked_ops.h"

#include <cmath>
#include <vector>

#include "dsv4/ops/compressor/compressor_oracle.h"
#include "dsv4/ops/embed/embed_oracle.h"
#include "dsv4/ops/experts/experts_oracle.h"
#include "dsv4/ops/indexer/indexer_oracle.h"
#include "dsv4/ops/kv_insert/kv_insert_oracle.h"
#include "dsv4/ops/linear/linear_oracle.h"
#include "dsv4/ops/mhc/mhc_oracle.h"
#include "dsv4/ops/norm/norm_oracle.h"
#include "dsv4/ops/quant/quant_oracle.h"
#include "dsv4/ops/rope/rope_oracle.h"
#include "dsv4/ops/router/router_oracle.h"
#include "dsv4/ops/sparse_mla/sparse_mla_oracle.h"
#include "tests/harness/compare.h"

namespace dsv4 {
namespace test {

std::map<std::string, OpRecord>& op_records() {
  static std::map<std::string, OpRecord> records;
  return records;
}

}  // namespace test

namespace {

using test::Tolerance;

struct Want {
  TensorView got;
  std::vector<double> want;
  Tolerance tolerance;
};

// Oracles come first: many ops write in place.
template <class Args>
void run_checked(const char* op, Table<Args> table, const Context& context, const Args& args,
                 const std::vector<Want>& wants) {
  choose(table, context, args).run(context, args);
  test::OpRecord& record = test::op_records()[op];
  ++record.calls;
  for (const Want& w : wants) {
    // compare() walks contiguous tensors; wo_a writes strided rows, which go row by row.
    const bool strided = w.got.rank == 2 && !w.got.is_contiguous();
    const int64_t rows = strided ? w.got.dim(0) : 1, n = w.got.numel() / std::max<int64_t>(rows, 1);
    for (int64_t r = 0; r < rows; ++r) {
      const TensorView part = strided ? w.got.slice(0, r, r + 1) : w.got;
      const std::vector<double> want(w.want.begin() + r * n, w.want.begin() + (r + 1) * n);
      const std::string report = test::compare(part, want, w.tolerance);
      if (report.empty()) continue;
      if (record.failures++ == 0) record.first_failure = report;
    }
  }
}

// One bf16 step: f32 sums that lie near a tie may round to the other side.
constexpr double kOneStep = 1.01;

}  // namespace

void embed(const Context& context, const EmbedArgs& args) {
  run_checked("embed", embed_rows(), context, args, {{args.out, embed_oracle(args), {.ulps = 0}}});
}

void rms_norm(const Context& context, const RmsNormArgs& args) {
  run_checked("rms_norm", rms_norm_rows(), context, args,
              {{args.out, rms_norm_oracle(args), {.ulps = kOneStep}}});
}

// A mean near a tie moves the whole head by one bf16 step of the root, which is up to two of a
// value.
void head_norm(const Context& context, const HeadNormArgs& args) {
  run_checked("head_norm", head_norm_rows(), context, args,
              {{args.out, head_norm_oracle(context, args), {.ulps = 2.01}}});
}

void rope(const Context& context, const RopeArgs& args) {
  run_checked("rope", rope_rows(), context, args,
              {{args.x, rope_oracle(args), {.ulps = kOneStep, .rel = 1e-6}}});
}

void quantize_q8(const Context& context, const QuantizeQ8Args& args) {
  const QuantizeQ8Want want = quantize_q8_oracle(args);
  run_checked("quantize_q8", quantize_q8_rows(), context, args,
              {{args.codes, want.codes, {.ulps = 0}}, {args.scales, want.scales, {.ulps = 0}}});
}

void fake_quant(const Context& context, const FakeQuantArgs& args) {
  run_checked("fake_quant", fake_quant_rows(), context, args,
              {{args.out, fake_quant_oracle(args), {.ulps = 0}}});
}

void hadamard(const Context& context, const HadamardArgs& args) {
  run_checked("hadamard", hadamard_rows(), context, args,
              {{args.out, hadamard_oracle(args), {.ulps = kOneStep, .rel = 1e-6}}});
}

void linear(const Context& context, const LinearArgs& args) {
  const double walk = 4 + std::sqrt(static_cast<double>(args.weight.k));
  const Tolerance tolerance{.ulps = kOneStep, .abs = 0x1p-24 * walk * linear_magnitude(args)};
  run_checked("linear", linear_rows(), context, args, {{args.out, linear_oracle(args), tolerance}});
}

void hc_pre(const Context& context, const HcPreArgs& args) {
  const HcPreWant want = hc_pre_oracle(args);
  run_checked("hc_pre", hc_pre_rows(), context, args,
              {{args.out, want.out, {.ulps = kOneStep, .rel = 5e-6}},
               {args.post, want.post, {.ulps = 4, .abs = 2e-5}},
               {args.comb, want.comb, {.ulps = 4, .abs = 2e-5}}});
}

void hc_post(const Context& context, const HcPostArgs& args) {
  run_checked("hc_post", hc_post_rows(), context, args,
              {{args.streams, hc_post_oracle(args), {.ulps = kOneStep, .rel = 5e-6}}});
}

void hc_head(const Context& context, const HcHeadArgs& args) {
  run_checked("hc_head", hc_head_rows(), context, args,
              {{args.out, hc_head_oracle(args), {.ulps = kOneStep, .rel = 5e-6}}});
}

void kv_insert(const Context& context, const KvInsertArgs& args) {
  run_checked("kv_insert", kv_insert_rows(), context, args, {});
  // Entries as attention will read them, against the values that went in.
  const std::vector<double> want = kv_insert_oracle(args);
  const int64_t width = args.pool.layout.width();
  std::vector<float> row(static_cast<size_t>(width));
  test::OpRecord& record = test::op_records()["kv_insert"];
  for (int64_t i = 0; i < args.rows.dim(0); ++i) {
    load_row(args.pool, args.rows.as<int32_t>()[i], row.data());
    for (int64_t c = 0; c < width; ++c) {
      record.failures += static_cast<double>(row[static_cast<size_t>(c)]) !=
                         want[static_cast<size_t>(i * width + c)];
    }
  }
}

void index_insert(const Context& context, const IndexInsertArgs& args) {
  run_checked("index_insert", index_insert_rows(), context, args, {});
}

void compressor(const Context& context, const CompressorArgs& args) {
  const CompressorWant want = compressor_oracle(args);
  run_checked("compressor", compressor_rows(), context, args,
              {{args.out, want.out, {.ulps = kOneStep, .rel = 2e-5}},
               {args.state, want.state, {.ulps = kOneStep}}});
}

// Dots near a bf16 tie: 2^-8 of one head's term, and of the sum.
void index_scores(const Context& context, const IndexScoresArgs& args) {
  run_checked("index_scores", index_scores_rows(), context, args,
              {{args.scores, index_scores_oracle(context, args), {.ulps = 0, .rel = 0x1p-8}}});
}

void top_k(const Context& context, const TopKArgs& args) {
  run_checked("top_k", top_k_rows(), context, args,
              {{args.indices, top_k_oracle(args), {.ulps = 0}}});
}

void sparse_mla(const Context& context, const SparseMlaArgs& args) {
  run_checked("sparse_mla", sparse_mla_rows(), context, args,
              {{args.out, sparse_mla_oracle(context, args).out, {.ulps = kOneStep, .rel = 2e-3}}});
}

void router(const Context& context, const RouterArgs& args) {
  const RouterAnswer want = router_oracle(args);
  run_checked(
      "router", router_rows(), context, args,
      {{args.experts, want.experts, {.ulps = 0}}, {args.weights, want.weights, {.ulps = 16}}});
}

// A hidden value near a tie may move by a Q8 code (ops/experts/experts_test.cc argues the bound).
void experts(const Context& context, const ExpertsArgs& args) {
  run_checked("experts", experts_rows(), context, args,
              {{args.acc, experts_oracle(context, args), {.rel = 0.02, .cosine = 1e-5}}});
}

}  // namespace dsv4
