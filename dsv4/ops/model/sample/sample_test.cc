#include "dsv4/ops/model/sample/sample.h"

#include <array>
#include <cmath>
#include <functional>
#include <limits>

#include "dsv4/base/bits.h"
#include "dsv4/base/error.h"
#include "dsv4/ops/model/sample/sample_case.h"
#include "dsv4/tensor/buffer.h"
#include "tests/harness/op_check.h"

namespace dsv4 {
namespace {

using test::Arena;
using test::Features;
using Call = test::SampleCall;

constexpr Features kNone{}, kAll{.terms = true, .mask = true, .top = true};

constexpr float kInf = std::numeric_limits<float>::infinity();

TensorView arena_view(const ConstTensorView& input) {
  return {input, const_cast<std::byte*>(input.data)};
}

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

void check_case(const std::string& name, Arena& arena, const SampleArgs& args) {
  const SampleWant want = sample_oracle(args);
  const int64_t b = args.logits.dim(0), v = args.logits.dim(1);
  test::OpCase<SampleArgs> test{.name = name, .args = args, .num_tokens = b};
  // Ids are exact: with these fixed seeds, no uniform of 53 bits is within the rounding error
  // (1e-12) of a border. Each weight of the sum in a log-probability is off by at most 2^-47; the
  // rest is f64, rounded once.
  const test::Tolerance log{.ulps = 0.51, .abs = static_cast<double>(v) * 0x1p-46 + 1e-12};
  test.outputs = {{"ids", args.ids, want.ids, {.ulps = 0}},
                  {"logprobs", args.logprobs, want.logprobs, log}};
  if (!args.top_ids.empty()) {
    test.outputs.push_back({"top_ids", args.top_ids, want.top_ids, {.ulps = 0}});
    test.outputs.push_back({"top_logprobs", args.top_logprobs, want.top_logprobs, log});
  }
  test.one_token = [](const SampleArgs& a, int64_t i) {
    const auto r = static_cast<size_t>(i);
    SampleArgs one = a;
    one.logits = a.logits.slice(0, i, i + 1);
    one.params = a.params.subspan(r, 1), one.steps = a.steps.subspan(r, 1);
    one.ids = a.ids.slice(0, i, i + 1), one.logprobs = a.logprobs.slice(0, i, i + 1);
    if (!a.term_begin.empty()) one.term_begin = a.term_begin.subspan(r, 2);
    if (!a.mask.empty()) one.mask = a.mask.slice(0, i, i + 1);
    if (a.top_ids.empty()) return one;
    one.top_ids = a.top_ids.slice(0, i, i + 1);
    one.top_logprobs = a.top_logprobs.slice(0, i, i + 1);
    return one;
  };
  test.strided = [](SampleArgs& a, test::StridedCopy& copy) { copy(a.logits), copy(a.mask); };
  check_op(sample.impls, Context{}, arena, test);
}

void check_sample(int64_t b, int64_t v, double sigma, Features features, uint64_t seed) {
  Arena arena;
  Rng rng(seed);
  Call call(arena, b, v, features, rng);
  test::fill_normal(arena_view(call.args.logits), rng, sigma);
  call.randomize(rng);
  check_case(fmt::format("sample {}x{} sigma {}{}", b, v, sigma, features.terms ? " all" : ""),
             arena, call.args);
}

TEST(Sample, AgreesWithOracle) {
  uint64_t seed = 1;
  for (const int64_t v : {1, 2, 3, 17, 1000}) {
    for (const double sigma : {0.0, 0.1, 3.0, 200.0}) {
      for (const int64_t b : {0, 1, 40}) check_sample(b, v, sigma, kNone, seed++);
      check_sample(20, v, sigma, kAll, seed++);
    }
  }
  check_sample(4, 129280, 3.0, kNone, seed++);
  check_sample(2, 20'000, 0.01, kNone, seed++);  // flat: a draw needs many candidates
  check_sample(4, 129280, 3.0, kAll, seed++);
  check_sample(3, 150'000, 1.0, kAll, seed++);  // more than 2^17 tokens: fewer bits of a mass
}

// Rows that are hard to search: few distinct values, values on many scales, one likely token.
TEST(Sample, AgreesWithOracleOnHardRows) {
  const auto pow2 = [](int64_t e) { return std::ldexp(1.f, static_cast<int>(e)); };
  const std::vector<std::pair<const char*, std::function<float(int64_t, Rng&)>>> rows{
      {"equal", [](int64_t, Rng&) { return 0.25f; }},
      {"one hot", [](int64_t i, Rng&) { return i == 777 ? 90.f : 0.f; }},
      {"two values", [](int64_t i, Rng&) { return i % 3 == 0 ? 1.f : 0.f; }},
      {"eight values", [](int64_t, Rng& rng) { return static_cast<float>(rng.below(8)); }},
      {"mostly banned",
       [](int64_t i, Rng& rng) { return i % 97 == 5 ? static_cast<float>(rng.normal()) : -kInf; }},
      {"many scales",
       [&](int64_t i, Rng& rng) {
         const float magnitude = pow2(-rng.below(100));
         return i % 2 == 0 ? magnitude : -magnitude;
       }},
      {"close to a value",
       [&](int64_t, Rng& rng) { return 3.f + pow2(-22) * static_cast<float>(rng.below(1000)); }},
      {"scales within scales",
       [&](int64_t i, Rng& rng) {
         return 1.f +
                (i % 5000 == 0  ? pow2(-4)
                 : i % 500 == 0 ? pow2(-11)
                 : i % 50 == 0  ? pow2(-18)
                                : 0.f) +
                pow2(-23) * static_cast<float>(rng.below(2));
       }},
      {"huge",
       [](int64_t i, Rng& rng) {
         return static_cast<float>(rng.normal()) * (i % 2 == 0 ? 5e37f : 1.f);
       }},
      {"a ramp", [](int64_t i, Rng&) { return -static_cast<float>(i) * 1e-3f; }},
  };
  uint64_t seed = 1000;
  for (const auto& [name, value] : rows) {
    Arena arena;
    Rng rng(seed++);
    constexpr int64_t kRows = 12, kVocabulary = 40'000;
    Call call(arena, kRows, kVocabulary, {.top = true}, rng);
    auto* logits = arena_view(call.args.logits).as<float>();
    for (int64_t i = 0; i < kRows * kVocabulary; ++i) logits[i] = value(i % kVocabulary, rng);
    call.randomize(rng);
    check_case(name, arena, call.args);
  }
}

// The CPU and a GPU give the same bits.
TEST(Sample, ImplementationsAgreeInBits) {
  if (test::gpu() == nullptr) GTEST_SKIP() << "no GPU";
  uint64_t seed = 5000;
  for (const double sigma : {0.1, 1.0, 4.0, 30.0}) {
    Arena arena;
    Rng rng(seed++);
    Call call(arena, 12, 5003, kAll, rng);
    test::fill_normal(arena_view(call.args.logits), rng, sigma);
    call.randomize(rng);
    arena.freeze();
    arena.prepare();
    sample(Context{}, call.args);
    const std::vector<std::byte> want = arena.written();
    for (const Impl<SampleArgs>& impl : sample.impls) {
      const Context context{.device = test::gpu()};
      if (impl.arch == Arch::kCpu || impl.reject(context, call.args) != nullptr) continue;
      arena.prepare();
      impl.run(context, call.args);
      test::wait(*test::gpu());
      EXPECT_TRUE(arena.written() == want) << impl.name << ", sigma " << sigma;
    }
  }
}

// Device implementations cannot throw: for a row without a finite largest logit, the outputs say
// so.
TEST(Sample, DeviceImplementationsMarkBadLogits) {
  if (test::gpu() == nullptr) GTEST_SKIP() << "no GPU";
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  constexpr int64_t kRows = 8, kVocabulary = 1500;
  Arena arena;
  Rng rng(1);
  Call call(arena, kRows, kVocabulary, kNone, rng);
  const SampleArgs& args = call.args;
  for (int64_t r = 0; r < kRows; ++r) {
    float* row = arena_view(args.logits).row<float>(r);
    std::fill_n(row, kVocabulary, r % 4 == 3 ? -kInf : 1.f);
    if (r % 4 == 1) row[1499] = kNan;
    if (r % 4 == 2) row[7] = kInf;
    call.params[static_cast<size_t>(r)] = {.temperature = r < 4 ? 0.f : 1.f};
  }
  for (const Impl<SampleArgs>& row : sample.impls) {
    const Context context{.device = test::gpu()};
    if (row.arch == Arch::kCpu || row.reject(context, args) != nullptr) continue;
    arena.prepare();
    row.run(context, args);
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
  check_statistics(logits, {.min_p = 0.1f});
  check_statistics(logits, {.temperature = 2.f, .top_p = 0.9f, .min_p = 0.2f});
}

// Greedy choice and log-probability with one optional argument each.
TEST(Sample, TermsAndMaskChangeTheChoiceButNotTheLogprob) {
  const Buffer row(DType::kF32, {1, 3}), ids(DType::kI32, {1}), logprobs(DType::kF32, {1});
  const Buffer mask(DType::kI32, {1, 1});
  const uint64_t step = 0;
  const auto choose = [&](std::vector<float> logits, const SamplingParams& params,
                          const std::vector<TokenTerm>& terms, int32_t allowed) {
    std::copy(logits.begin(), logits.end(), row.as<float>());
    mask.as<int32_t>()[0] = allowed;
    const std::vector<int32_t> begin{0, static_cast<int32_t>(terms.size())};
    sample(Context{}, {.logits = row,
                       .params = {&params, 1},
                       .steps = {&step, 1},
                       .ids = ids,
                       .logprobs = logprobs,
                       .terms = terms,
                       .term_begin = begin,
                       .mask = mask});
    return ids.as<int32_t>()[0];
  };
  const TokenTerm twice{.id = 2, .count = 2, .seen = 1}, prompt{.id = 2, .seen = 1};
  const SamplingParams greedy{.temperature = 0};
  EXPECT_EQ(choose({1, 2, 3}, greedy, {}, 7), 2);
  EXPECT_EQ(choose({1, 2, 3}, greedy, {twice}, 7), 2) << "neutral penalties";
  EXPECT_EQ(choose({1, 2, 3}, greedy, {}, 3), 1) << "the mask bans id 2";
  EXPECT_FLOAT_EQ(logprobs.as<float>()[0], -1.40760596f) << "of the logits as given";
  EXPECT_EQ(choose({1, 2, 3}, greedy, {{.id = 0, .bias = 2.5f}}, 7), 0);
  EXPECT_EQ(choose({1, 2, 3}, greedy, {{.id = 2, .bias = -kInf}}, 7), 1);
  EXPECT_EQ(choose({1, 2, 3}, {.temperature = 0, .presence_penalty = 1.5f}, {twice}, 7), 1);
  EXPECT_EQ(choose({1, 2, 3}, {.temperature = 0, .presence_penalty = 1.5f}, {prompt}, 7), 2)
      << "tokens of the prompt have no presence penalty";
  EXPECT_EQ(choose({1, 2, 3}, {.temperature = 0, .frequency_penalty = 0.6f}, {twice}, 7), 1);
  EXPECT_EQ(choose({1, 2, 3}, {.temperature = 0, .frequency_penalty = 0.4f}, {twice}, 7), 2);
  EXPECT_EQ(choose({1, 2, 3}, {.temperature = 0, .repetition_penalty = 2.f}, {prompt}, 7), 1);
  EXPECT_EQ(choose({-4, -3, -2}, {.temperature = 0, .repetition_penalty = 2.f}, {prompt}, 7), 1);
}

TEST(Sample, MinPDropsUnlikelyTokens) {
  const std::vector<float> logits{0.f, std::log(0.5f), std::log(0.3f), std::log(0.05f)};
  const auto support = [&](float min_p) {
    size_t seen = 0;
    for (uint64_t step = 0; step < 400; ++step)
      seen |= size_t{1} << sample_one(logits, {.min_p = min_p}, step).id;
    return seen;
  };
  EXPECT_EQ(support(0.f), 15u);
  EXPECT_EQ(support(0.1f), 7u);
  EXPECT_EQ(support(0.4f), 3u);
  EXPECT_EQ(support(1.f), 1u);
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
  EXPECT_TRUE(has(error({0}, {.min_p = 1.5f}), "min_p=1.5"));
  EXPECT_TRUE(has(error({0}, {.repetition_penalty = 0}), "repetition_penalty=0"));
  EXPECT_TRUE(has(error({0}, {.frequency_penalty = nan}), "frequency_penalty=nan"));
}

}  // namespace
}  // namespace dsv4
