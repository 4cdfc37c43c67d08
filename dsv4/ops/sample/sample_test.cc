#include "dsv4/ops/sample/sample.h"

#include <array>
#include <cmath>
#include <limits>

#include "dsv4/base/error.h"
#include "dsv4/ops/sample/sample_oracle.h"
#include "dsv4/tensor/buffer.h"
#include "tests/harness/op_check.h"

namespace dsv4 {
namespace {

using test::Arena;

constexpr float kInf = std::numeric_limits<float>::infinity();

struct Choice {
  int32_t id;
  float logprob;
};

Choice sample_one(const std::vector<float>& logits, const SamplingParams& params,
                  uint64_t step = 0) {
  const auto v = static_cast<int64_t>(logits.size());
  const Buffer ids(DType::kI32, {1}), logprobs(DType::kF32, {1}), row(DType::kF32, {1, v});
  std::copy(logits.begin(), logits.end(), row.as<float>());
  sample(Context{}, {.logits = row,
                     .params = {&params, 1},
                     .steps = {&step, 1},
                     .ids = ids,
                     .logprobs = logprobs});
  return {ids.as<int32_t>()[0], logprobs.as<float>()[0]};
}

// Parameters and steps in memory that every implementation can read.
struct Draws {
  std::span<SamplingParams> params;
  std::span<uint64_t> steps;

  Draws(Arena& arena, int64_t b) {
    const auto n = static_cast<size_t>(b);
    const auto bytes = static_cast<int64_t>(sizeof(SamplingParams));
    params = {reinterpret_cast<SamplingParams*>(arena.input(DType::kU8, {b, bytes}).data), n};
    steps = {arena.input(DType::kI64, {b}).as<uint64_t>(), n};
  }
};

void check_sample(int64_t b, int64_t v, double sigma, uint64_t seed) {
  Arena arena;
  Rng rng(seed);
  const TensorView logits = arena.input(DType::kF32, {b, v});
  test::fill_normal(logits, rng, sigma);
  const Draws draws(arena, b);
  for (size_t r = 0; r < draws.params.size(); ++r) {
    constexpr std::array kTemperatures{0.f, 0.3f, 1.f, 5.f};
    constexpr std::array kTopP{1.f, 0.95f, 0.3f};
    constexpr std::array kTopK{0, 1, 5, 1'000'000};
    draws.params[r] = {.temperature = kTemperatures[static_cast<size_t>(rng.below(4))],
                       .top_p = kTopP[static_cast<size_t>(rng.below(3))],
                       .top_k = kTopK[static_cast<size_t>(rng.below(4))],
                       .seed = rng.bits()};
    draws.steps[r] = rng.bits();
  }
  const SampleArgs args{.logits = logits,
                        .params = draws.params,
                        .steps = draws.steps,
                        .ids = arena.output(DType::kI32, {b}),
                        .logprobs = arena.output(DType::kF32, {b})};
  const SampleWant want = sample_oracle(args);
  test::OpCase<SampleArgs> test{
      .name = fmt::format("sample {}x{} sigma {}", b, v, sigma), .args = args, .num_tokens = b};
  // Ids are exact: with these fixed seeds, no uniform of 53 bits is within the rounding error
  // (1e-13) of a border. Log-probabilities are f64, rounded once.
  test.outputs = {{"ids", args.ids, want.ids, {.ulps = 0}},
                  {"logprobs", args.logprobs, want.logprobs, {.ulps = 0.51, .abs = 1e-12}}};
  test.one_token = [](const SampleArgs& a, int64_t i) {
    return SampleArgs{.logits = a.logits.slice(0, i, i + 1),
                      .params = a.params.subspan(static_cast<size_t>(i), 1),
                      .steps = a.steps.subspan(static_cast<size_t>(i), 1),
                      .ids = a.ids.slice(0, i, i + 1),
                      .logprobs = a.logprobs.slice(0, i, i + 1)};
  };
  test.strided = [](SampleArgs& a, test::StridedCopy& copy) { copy(a.logits); };
  check_op(sample.impls, Context{}, arena, test);
}

TEST(Sample, AgreesWithOracle) {
  uint64_t seed = 1;
  for (const int64_t v : {1, 2, 3, 17, 1000}) {
    for (const double sigma : {0.0, 0.1, 3.0, 200.0}) {
      for (const int64_t b : {0, 1, 40}) check_sample(b, v, sigma, seed++);
    }
  }
  check_sample(4, 129280, 3.0, seed++);
  check_sample(2, 20'000, 0.01, seed++);  // flat: a draw needs many candidates
}

// Device implementations cannot throw: for a row without a finite largest logit, the outputs say
// so.
TEST(Sample, DeviceImplementationsMarkBadLogits) {
  if (test::gpu() == nullptr) GTEST_SKIP() << "no GPU";
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  constexpr int64_t kRows = 8, kVocabulary = 1500;
  Arena arena;
  const TensorView logits = arena.input(DType::kF32, {kRows, kVocabulary});
  const Draws draws(arena, kRows);
  for (int64_t r = 0; r < kRows; ++r) {
    float* row = logits.row<float>(r);
    std::fill_n(row, kVocabulary, r % 4 == 3 ? -kInf : 1.f);
    if (r % 4 == 1) row[1499] = kNan;
    if (r % 4 == 2) row[7] = kInf;
    draws.params[static_cast<size_t>(r)] = {.temperature = r < 4 ? 0.f : 1.f};
  }
  const SampleArgs args{.logits = logits,
                        .params = draws.params,
                        .steps = draws.steps,
                        .ids = arena.output(DType::kI32, {kRows}),
                        .logprobs = arena.output(DType::kF32, {kRows})};
  for (const Impl<SampleArgs>& row : sample.impls) {
    if (row.arch == Arch::kCpu) continue;
    arena.prepare();
    row.run(Context{.device = test::gpu()}, args);
    test::wait(*test::gpu());
    for (int64_t r = 0; r < kRows; ++r) {
      EXPECT_EQ(args.ids.as<int32_t>()[r] == -1, r % 4 != 0) << row.name << " row " << r;
      EXPECT_EQ(std::isnan(args.logprobs.as<float>()[r]), r % 4 != 0) << row.name << " row " << r;
    }
  }
}

TEST(Sample, GreedyTakesTheLowestIdOfTheLargest) {
  const SamplingParams greedy{.temperature = 0};
  EXPECT_EQ(sample_one({1, 3, 2, 3}, greedy).id, 1);
  EXPECT_EQ(sample_one({-kInf, -5, -5}, greedy).id, 1);
  EXPECT_EQ(sample_one({7}, greedy).id, 0);
  EXPECT_EQ(sample_one({0.f, -0.f}, greedy).id, 0);
  std::vector<float> long_row(1003, -1.f);
  long_row[1002] = 2;
  EXPECT_EQ(sample_one(long_row, greedy).id, 1002);
}

TEST(Sample, TopKOneAndTinyTopPAreGreedy) {
  Rng rng(11);
  for (uint64_t step = 0; step < 200; ++step) {
    std::vector<float> logits;
    for (int i = 0; i < 50; ++i) logits.push_back(static_cast<float>(rng.below(8)));  // many ties
    const int32_t greedy = sample_one(logits, {.temperature = 0}).id;
    EXPECT_EQ(sample_one(logits, {.top_k = 1, .seed = 3}, step).id, greedy);
    EXPECT_EQ(sample_one(logits, {.top_p = 1e-9f, .seed = 3}, step).id, greedy);
    EXPECT_EQ(sample_one(logits, {.temperature = 1e-30f, .top_k = 1, .seed = 3}, step).id, greedy);
  }
}

// Draws n times and compares the counts with the oracle's distribution.
void check_statistics(const std::vector<float>& logits, SamplingParams params) {
  constexpr int kDraws = 20'000;
  const auto v = static_cast<int64_t>(logits.size());
  params.seed = 42;
  const Buffer rows(DType::kF32, {kDraws, v}), ids(DType::kI32, {kDraws});
  const Buffer logprobs(DType::kF32, {kDraws});
  std::vector<uint64_t> steps;
  for (int i = 0; i < kDraws; ++i) {
    std::copy(logits.begin(), logits.end(), rows.view().row<float>(i));
    steps.push_back(static_cast<uint64_t>(i));
  }
  const std::vector<SamplingParams> all(kDraws, params);
  sample(Context{},
         {.logits = rows, .params = all, .steps = steps, .ids = ids, .logprobs = logprobs});
  std::vector<double> count(logits.size(), 0.0);
  for (int i = 0; i < kDraws; ++i) ++count[static_cast<size_t>(ids.as<int32_t>()[i])];

  const std::vector<double> p = sample_distribution(params, logits.data(), v);
  double chi2 = 0, degrees = -1;
  for (size_t i = 0; i < p.size(); ++i) {
    const double expected = p[i] * kDraws;
    if (p[i] == 0) {
      EXPECT_EQ(count[i], 0) << "id " << i << " was cut";
      continue;
    }
    chi2 += (count[i] - expected) * (count[i] - expected) / expected;
    ++degrees;
  }
  // Mean `degrees`, variance 2 * degrees: five sigma, plus some for the skew at few degrees.
  EXPECT_LT(chi2, degrees + 5 * std::sqrt(2 * degrees) + 5);
}

TEST(Sample, CountsFollowTheDistribution) {
  const std::vector<float> logits{0.5f, -1.f, 2.f, 2.f, 0.f, -kInf, 1.f, -2.f};
  check_statistics(logits, {});
  check_statistics(logits, {.temperature = 0.5f});
  check_statistics(logits, {.temperature = 3.f, .top_k = 3});
  check_statistics(logits, {.top_p = 0.8f});
  check_statistics(logits, {.top_p = 0.7f, .top_k = 4});
}

TEST(Sample, TopPKeepsTheSmallestSufficientSet) {
  // p = 1/2, 1/4, 1/8, 1/8: exact in f64 up to the rounding of exp, so the test keeps a distance
  // from the borders.
  const std::vector<float> logits{std::log(0.125f), std::log(0.5f), std::log(0.25f),
                                  std::log(0.125f)};
  const auto support = [&](float top_p) {
    std::array<bool, 4> seen{};
    for (uint64_t step = 0; step < 400; ++step) {
      seen[static_cast<size_t>(sample_one(logits, {.top_p = top_p}, step).id)] = true;
    }
    return seen;
  };
  using Seen = std::array<bool, 4>;
  EXPECT_EQ(support(0.49f), (Seen{false, true, false, false}));
  EXPECT_EQ(support(0.51f), (Seen{false, true, true, false}));
  EXPECT_EQ(support(0.76f), (Seen{true, true, true, false})) << "a tie goes to the lowest id";
  EXPECT_EQ(support(0.88f), (Seen{true, true, true, true}));
  EXPECT_EQ(support(1.f), (Seen{true, true, true, true}));
}

TEST(Sample, DrawsAreReproducibleAndDependOnSeedAndStep) {
  Rng rng(9);
  std::vector<float> logits;
  for (int i = 0; i < 1000; ++i) logits.push_back(static_cast<float>(rng.normal()));
  const SamplingParams params{.seed = 5};
  EXPECT_EQ(sample_one(logits, params, 3).id, sample_one(logits, params, 3).id);
  int same_step = 0, same_seed = 0;
  for (uint64_t i = 0; i < 50; ++i) {
    same_step += sample_one(logits, params, i).id == sample_one(logits, params, i + 1).id;
    same_seed += sample_one(logits, params, i).id == sample_one(logits, {.seed = 6}, i).id;
  }
  EXPECT_LT(same_step, 5);
  EXPECT_LT(same_seed, 5);
}

TEST(Sample, BannedTokensAreNeverChosen) {
  std::vector<float> logits(100, -kInf);
  logits[71] = -300.f;
  for (uint64_t step = 0; step < 100; ++step) {
    const Choice choice = sample_one(logits, {.temperature = 2.f}, step);
    EXPECT_EQ(choice.id, 71);
    EXPECT_EQ(choice.logprob, 0.f);
  }
}

TEST(Sample, LogprobIsOfTheRawLogits) {
  const Choice choice = sample_one({1, 2, 3}, {.temperature = 0.1f, .top_k = 1});
  EXPECT_EQ(choice.id, 2);
  EXPECT_FLOAT_EQ(choice.logprob, -0.40760596f);
}

TEST(Sample, ReportsErrors) {
  const auto error = [](const std::vector<float>& logits, const SamplingParams& params) {
    return test::error_of([&] { sample_one(logits, params); });
  };
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const std::string row = "logits of row 0: the largest of ";
  for (size_t at = 0; at < 40; ++at) {
    std::vector<float> logits(40, 1.f);
    logits[at] = nan;
    EXPECT_EQ(error(logits, {}), row + "40 is nan") << at;
    EXPECT_EQ(error(logits, {.temperature = 0}), row + "40 is nan") << at;
  }
  EXPECT_EQ(error({-kInf, -kInf}, {}), row + "2 is -inf");
  EXPECT_EQ(error({0, kInf}, {}), row + "2 is inf");
  EXPECT_EQ(error({}, {}), row + "0 is -inf");
  const auto has = [](const std::string& text, const char* part) {
    return text.find(part) != std::string::npos;
  };
  EXPECT_TRUE(has(error({0}, {.temperature = -1}), "temperature=-1"));
  EXPECT_TRUE(has(error({0}, {.temperature = nan}), "temperature=nan"));
  EXPECT_TRUE(has(error({0}, {.top_p = 0}), "top_p=0"));
  EXPECT_TRUE(has(error({0}, {.top_p = 1.5f}), "top_p=1.5"));
  EXPECT_TRUE(has(error({0}, {.top_k = -1}), "top_k=-1"));
}

}  // namespace
}  // namespace dsv4
