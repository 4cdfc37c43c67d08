#include "tests/model/oracle_check.h"

#include <cmath>
#include <vector>

#include "dsv4/ops/model/embed/embed_case.h"
#include "dsv4/ops/model/sparse_mla/sparse_mla_case.h"
#include "dsv4/ops/parts/compressor/compressor_case.h"
#include "dsv4/ops/parts/experts/experts_case.h"
#include "dsv4/ops/parts/indexer/indexer_case.h"
#include "dsv4/ops/parts/kv_insert/kv_insert_case.h"
#include "dsv4/ops/parts/linear/linear_case.h"
#include "dsv4/ops/parts/mhc/mhc_case.h"
#include "dsv4/ops/parts/norm/norm_case.h"
#include "dsv4/ops/parts/quant/quant_case.h"
#include "dsv4/ops/parts/rope/rope_case.h"
#include "dsv4/ops/parts/router/router_case.h"
#include "tests/harness/compare.h"

namespace dsv4::test {
namespace {

struct Want {
  TensorView got;
  std::vector<double> want;
  Tolerance tolerance;
};

void compare_with(const Want& w, OpRecord& record) {
  // compare() handles contiguous tensors; wo_a writes strided rows, which are compared one by one.
  const bool strided = w.got.rank == 2 && !w.got.is_contiguous();
  const int64_t rows = strided ? w.got.dim(0) : 1, n = w.got.numel() / std::max<int64_t>(rows, 1);
  for (int64_t r = 0; r < rows; ++r) {
    const TensorView got = strided ? w.got.slice(0, r, r + 1) : w.got;
    const std::vector<double> want(w.want.begin() + r * n, w.want.begin() + (r + 1) * n);
    const std::string report = compare(got, want, w.tolerance);
    if (report.empty()) continue;
    if (record.failures++ == 0) record.first_failure = report;
  }
}

// One bf16 step: f32 sums near a tie may round the other way.
constexpr double kOneStep = 1.01;

using Wants = std::vector<Want>;

Wants wants(const Context&, const EmbedArgs& args) {
  return {{args.out, embed_oracle(args), {.ulps = 0}}};
}

Wants wants(const Context&, const RmsNormArgs& args) {
  return {{args.out, rms_norm_oracle(args), {.ulps = kOneStep}}};
}

// A mean near a tie changes the whole head by one bf16 step of the root, which is up to two steps
// of a value.
Wants wants(const Context& context, const HeadNormArgs& args) {
  return {{args.out, head_norm_oracle(context, args), {.ulps = 2.01}}};
}

Wants wants(const Context&, const RopeArgs& args) {
  return {{args.x, rope_oracle(args), {.ulps = kOneStep, .rel = 1e-6}}};
}

Wants wants(const Context&, const QuantizeQ8Args& args) {
  const QuantizeQ8Want want = quantize_q8_oracle(args);
  return {{args.codes, want.codes, {.ulps = 0}}, {args.scales, want.scales, {.ulps = 0}}};
}

Wants wants(const Context&, const FakeQuantArgs& args) {
  return {{args.out, fake_quant_oracle(args), {.ulps = 0}}};
}

Wants wants(const Context&, const HadamardArgs& args) {
  return {{args.out, hadamard_oracle(args), {.ulps = kOneStep, .rel = 1e-6}}};
}

Wants wants(const Context&, const LinearArgs& args) {
  const double walk = 4 + std::sqrt(static_cast<double>(args.weight.k));
  const Tolerance tolerance{.ulps = kOneStep, .abs = 0x1p-24 * walk * linear_magnitude(args)};
  return {{args.out, linear_oracle(args), tolerance}};
}

Wants wants(const Context&, const HcPreArgs& args) {
  const HcPreWant want = hc_pre_oracle(args);
  return {{args.out, want.out, {.ulps = kOneStep, .rel = 5e-6}},
          {args.post, want.post, {.ulps = 4, .abs = 2e-5}},
          {args.comb, want.comb, {.ulps = 4, .abs = 2e-5}}};
}

Wants wants(const Context&, const HcPostArgs& args) {
  return {{args.streams, hc_post_oracle(args), {.ulps = kOneStep, .rel = 5e-6}}};
}

Wants wants(const Context&, const HcHeadArgs& args) {
  return {{args.out, hc_head_oracle(args), {.ulps = kOneStep, .rel = 5e-6}}};
}

Wants wants(const Context&, const CompressorArgs& args) {
  const CompressorWant want = compressor_oracle(args);
  return {{args.out, want.out, {.ulps = kOneStep, .rel = 2e-5}},
          {args.state, want.state, {.ulps = kOneStep}}};
}

// Scores near a bf16 tie: 2^-8 of one head's term, and of the sum.
Wants wants(const Context& context, const IndexScoresArgs& args) {
  return {{args.scores, index_scores_oracle(context, args), {.ulps = 0, .rel = 0x1p-8}}};
}

Wants wants(const Context&, const TopKArgs& args) {
  return {{args.indices, top_k_oracle(args), {.ulps = 0}}};
}

Wants wants(const Context& context, const SparseMlaArgs& args) {
  return {{args.out, sparse_mla_oracle(context, args).out, {.ulps = kOneStep, .rel = 2e-3}}};
}

Wants wants(const Context&, const RouterArgs& args) {
  const RouterAnswer want = router_oracle(args);
  return {{args.experts, want.experts, {.ulps = 0}}, {args.weights, want.weights, {.ulps = 16}}};
}

// A hidden value near a tie may change by one Q8 code (bound: ops/parts/experts/experts_test.cc).
Wants wants(const Context& context, const ExpertsArgs& args) {
  return {{args.acc, experts_oracle(context, args), {.rel = 0.02, .cosine = 1e-5}}};
}

// Compares entries as attention will read them with the inserted values.
int count_wrong_entries(const KvInsertArgs& args) {
  const std::vector<double> want = kv_insert_oracle(args);
  const int64_t width = args.pool.layout.width();
  std::vector<float> row(static_cast<size_t>(width));
  int wrong = 0;
  for (int64_t i = 0; i < args.rows.dim(0); ++i) {
    load_row(args.pool, args.rows.as<int32_t>()[i], row.data());
    for (int64_t c = 0; c < width; ++c) {
      wrong += static_cast<double>(row[static_cast<size_t>(c)]) !=
               want[static_cast<size_t>(i * width + c)];
    }
  }
  return wrong;
}

// Oracles run before the call: many ops write in place.
template <class Args>
bool run_checked(const OpCall& call, const Op<Args>& op, OpRecord& record) {
  const Args* args = call.args_of(op);
  if (args == nullptr) return false;
  const Wants all = wants(call.context(), *args);
  call.run();
  for (const Want& want : all) compare_with(want, record);
  return true;
}

template <class... Args>
bool run_checked_by(const OpCall& call, OpRecord& record, const Op<Args>&... ops) {
  return (run_checked(call, ops, record) || ...);
}

}  // namespace

void OracleCheck::observe(const OpCall& call) {
  OpRecord& record = records_[std::string(call.op())];
  ++record.calls;
  if (call.impl().parts()) return call.run();  // each of the calls inside comes here
  if (run_checked_by(call, record, embed, rms_norm, head_norm, rope, quantize_q8, fake_quant,
                     hadamard, linear, hc_pre, hc_post, hc_head, compressor, index_scores, top_k,
                     sparse_mla, router, experts))
    return;
  call.run();
  if (const KvInsertArgs* args = call.args_of(kv_insert))
    record.failures += count_wrong_entries(*args);
}

}  // namespace dsv4::test
