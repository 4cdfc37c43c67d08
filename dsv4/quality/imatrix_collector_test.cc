// The means of an imatrix against fp64 sums over the activations of the same steps, which another
// observer writes down, and the outputs of experts against their formula.

#include "dsv4/quality/imatrix_collector.h"

#include <gtest/gtest.h>

#include <cmath>

#include "dsv4/base/error.h"
#include "dsv4/cpu/quant.h"
#include "dsv4/engine/score.h"
#include "dsv4/formats/weight.h"
#include "dsv4/loader/safetensors.h"
#include "dsv4/ops/oracle.h"
#include "dsv4/ops/parts/experts/experts.h"
#include "dsv4/ops/parts/linear/linear.h"
#include "tests/harness/errors.h"
#include "tests/harness/random_model.h"
#include "tests/harness/tiny_model.h"
#include "tests/model/golden_files.h"

namespace dsv4 {
namespace {

using Vector = std::vector<double>;

// By the address of the matrix's data.
struct Mean {
  Vector sum;
  int64_t rows = 0;
};
using Means = std::map<const std::byte*, Mean>;

class Recorder final : public Observer {
 public:
  Means means;

  void observe(const OpCall& call) override {
    call.run();
    if (call.impl().parts()) return;
    if (const LinearArgs* args = call.args_of(linear)) record(*args);
    if (const ExpertsArgs* args = call.args_of(experts))
      record(*args, call.context().numerics == Numerics::kOfficial);
  }

 private:
  void add(const WeightView& weight, const Vector& x) {
    Mean& mean = means[weight.data.data];
    mean.sum.resize(static_cast<size_t>(weight.k));
    for (size_t j = 0; j < x.size(); ++j) mean.sum[j] += x[j] * x[j];
    ++mean.rows;
  }

  void record(const LinearArgs& args) {
    const int64_t k = args.weight.k;
    for (int64_t t = 0; t < args.x.dim(0); ++t) {
      const Vector row = oracle::row(args.x, t);
      for (int64_t g = 0; g < args.groups; ++g) {
        Vector x(row.begin() + g * k, row.begin() + (g + 1) * k);
        if (!args.x_scale.empty()) {
          ASSERT_EQ(args.groups, 1);
          const Vector scales = oracle::row(args.x_scale, t);
          for (size_t j = 0; j < x.size(); ++j) x[j] *= scales[j / 128];
        }
        add(args.weight, x);
      }
    }
  }

  static double dot(const WeightView& weight, int64_t row, const Vector& x) {
    double sum = 0;
    for (size_t j = 0; j < x.size(); ++j)
      sum += static_cast<double>(weight_value(weight, row, static_cast<int64_t>(j))) * x[j];
    return sum;
  }

  // What a product with quantized weights reads under official numerics.
  static Vector q8(const Vector& x) {
    std::vector<float> row(x.begin(), x.end());
    cpu::fake_q8_row(row.data(), std::ssize(row), 128, row.data());
    return {row.begin(), row.end()};
  }

  void record(const ExpertsArgs& args, bool official) {
    const auto limit = static_cast<double>(args.swiglu_limit);
    for (int64_t t = 0; t < args.x.dim(0); ++t) {
      const Vector x = oracle::row(args.x, t);
      for (int64_t s = 0; s < slots(args); ++s) {
        const bool routed = !args.experts.empty();
        const auto e = routed ? static_cast<size_t>(args.experts.row<int32_t>(t)[s]) : 0;
        const double weight = routed ? static_cast<double>(args.weights.row<float>(t)[s]) : 1;
        const ExpertWeights& expert = args.stack.file()[e];
        const Vector in = official && expert.w1.quantized_activations() ? q8(x) : x;
        Vector h;
        for (int64_t i = 0; i < expert.w1.n; ++i) {
          double g = dot(expert.w1, i, in), u = dot(expert.w3, i, in);
          if (official) g = oracle::bf16(g), u = oracle::bf16(u);
          if (limit > 0) g = std::min(g, limit), u = std::clamp(u, -limit, limit);
          h.push_back(weight * g / (1 + std::exp(-g)) * u);
        }
        add(expert.w1, x), add(expert.w3, x), add(expert.w2, h);
      }
    }
  }
};

class ImatrixTest : public testing::TestWithParam<Numerics> {
 protected:
  void run(Observer& observer, int64_t chunk) const {
    score(model_, {.numerics = GetParam(), .observer = &observer}, ids_, chunk,
          [](int64_t, const ConstTensorView&) {});
  }

  static constexpr int64_t kTokens = 150;  // more than the indexer's top 32 entries have
  const Model model_ = test::random_model(test::tiny_config(), 8);
  const std::vector<int32_t> ids_ = test::random_ids(kTokens, model_.config().vocab_size, 2);
};

// Sums are of f32 products in exact numerics. In official ones, g and u may be rounded to the other
// neighbor in bf16, and h is: three halves of 2^-8 each, twice in its square.
TEST_P(ImatrixTest, MeansAreThoseOfRecordedActivations) {
  Recorder recorder;
  run(recorder, kTokens);
  ImatrixCollector collector(model_);
  run(collector, kTokens);
  const double tolerance = GetParam() == Numerics::kExact ? 1e-5 : 2.4e-2;
  const ModelWeights& weights = model_.weights();
  size_t compared = 0;
  const auto expect_same = [&](const std::string& name, const WeightView& weight) {
    const auto got = collector.sums().find(name);
    const auto want = recorder.means.find(weight.data.data);
    ASSERT_EQ(got == collector.sums().end(), want == recorder.means.end()) << name;
    if (want == recorder.means.end()) return;
    EXPECT_EQ(got->second.rows, want->second.rows) << name;
    ASSERT_EQ(got->second.squares.size(), static_cast<size_t>(weight.k)) << name;
    for (size_t j = 0; j < got->second.squares.size(); ++j)
      ASSERT_NEAR(got->second.squares[j], want->second.sum[j],
                  tolerance * (want->second.sum[j] + 1e-3))
          << name << " " << j;
    ++compared;
  };
  expect_same("head", weights.head);
  for (size_t l = 0; l < weights.layers.size(); ++l) {
    const std::string at = fmt::format("layers.{}.", l);
    const AttentionWeights& a = weights.layers[l].attn;
    expect_same(at + "attn.wq_a", a.wq_a);
    expect_same(at + "attn.wq_b", a.wq_b);
    expect_same(at + "attn.wkv", a.wkv);
    expect_same(at + "attn.wo_a", a.wo_a);
    expect_same(at + "attn.wo_b", a.wo_b);
    const MoeWeights& m = weights.layers[l].moe;
    expect_same(at + "ffn.gate", m.gate);
    expect_same(at + "ffn.shared_experts.w1", m.shared[0].w1);
    expect_same(at + "ffn.shared_experts.w2", m.shared[0].w2);
    for (size_t e = 0; e < m.routed.size(); ++e) {
      expect_same(fmt::format("{}ffn.experts.{}.w1", at, e), m.routed[e].w1);
      expect_same(fmt::format("{}ffn.experts.{}.w2", at, e), m.routed[e].w2);
      expect_same(fmt::format("{}ffn.experts.{}.w3", at, e), m.routed[e].w3);
    }
  }
  EXPECT_GT(compared, weights.layers.size() * (8 + 2 * 3)) << "an expert or two may be unused";
}

// Layers 0 and 1 choose experts by the token: t, t + 1 modulo 3 (fill_hash_table). wo_a has a row
// for each of its two groups.
TEST_P(ImatrixTest, ExpertsCountTheTokensThatChoseThem) {
  ImatrixCollector collector(model_);
  run(collector, kTokens);
  for (int64_t e = 0; e < 3; ++e) {
    int64_t chosen = 0;
    for (const int32_t id : ids_) chosen += id % 3 == e || (id + 1) % 3 == e ? 1 : 0;
    for (const char* w : {"w1", "w2", "w3"})
      EXPECT_EQ(collector.sums().at(fmt::format("layers.0.ffn.experts.{}.{}", e, w)).rows, chosen);
  }
  EXPECT_EQ(collector.sums().at("layers.2.attn.wo_a").rows, 2 * kTokens);
  EXPECT_EQ(collector.sums().at("layers.1.attn.indexer.wq_b").squares.size(), 192u);
  EXPECT_EQ(collector.sums().at("layers.2.attn.compressor.wkv").rows, kTokens);
}

// Sums of any chunks are those of one: a token's activations do not depend on its neighbors.
TEST_P(ImatrixTest, DoesNotDependOnChunks) {
  ImatrixCollector whole(model_), parts(model_);
  run(whole, kTokens);
  run(parts, 13);
  for (const auto& [name, sums] : whole.sums()) {
    if (name.find("indexer.w") != std::string::npos) continue;  // not used in short steps
    const ImatrixCollector::Sums& other = parts.sums().at(name);
    EXPECT_EQ(sums.rows, other.rows) << name;
    for (size_t j = 0; j < sums.squares.size(); ++j)
      ASSERT_NEAR(sums.squares[j], other.squares[j], 1e-12 * sums.squares[j]) << name;
  }
}

TEST_P(ImatrixTest, FilesHaveMeansAndCounts) {
  ImatrixCollector collector(model_);
  const test::TempFolder folder;
  EXPECT_TRUE(test::says(
      test::error_of(ErrorCode::kBadInput, [&] { collector.write(folder.file("none"), {}); }),
      "no token was read"));
  run(collector, kTokens);
  collector.write(folder.file("imatrix"), {{"tokens", "150"}});
  const SafetensorsFile file(folder.file("imatrix"));
  EXPECT_EQ(file.tensors().size(), collector.sums().size());
  EXPECT_EQ(file.metadata().at("tokens"), "150");
  EXPECT_EQ(file.metadata().at("layers.3.attn.wo_a"), "300");
  const auto& sums = collector.sums().at("layers.3.attn.wo_a");
  const ConstTensorView mean = file.tensors().at("layers.3.attn.wo_a");
  ASSERT_EQ(mean.numel(), std::ssize(sums.squares));
  EXPECT_FLOAT_EQ(mean.as<float>()[5], static_cast<float>(sums.squares[5] / 300));
}

INSTANTIATE_TEST_SUITE_P(Modes, ImatrixTest, testing::Values(Numerics::kExact, Numerics::kOfficial),
                         [](const auto& mode) { return std::string(name(mode.param)); });

}  // namespace
}  // namespace dsv4
