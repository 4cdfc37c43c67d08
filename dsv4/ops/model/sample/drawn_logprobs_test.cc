// drawn_logprobs() of sample.h against the whole distribution in fp64.

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "dsv4/base/bits.h"
#include "dsv4/base/error.h"
#include "dsv4/base/rng.h"
#include "dsv4/ops/model/sample/sample.h"
#include "dsv4/ops/model/sample/sample_case.h"
#include "dsv4/tensor/buffer.h"

namespace dsv4 {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr float kPoison = 12345;

// One row, with everything that changes a distribution at random.
class RandomRow {
 public:
  RandomRow(Rng& rng, int64_t v)
      : logits_(DType::kF32, {1, v}), mask_(DType::kI32, {1, ceil_div(v, 32)}) {
    const auto one_of = [&](auto... values) {
      const std::array all{values...};
      return all[static_cast<size_t>(rng.below(static_cast<int64_t>(all.size())))];
    };
    params_ = {.temperature = one_of(0.f, 0.3f, 1.f, 5.f),
               .top_p = one_of(1.f, 0.95f, 0.3f),
               .top_k = one_of(0, 1, 5, 1'000'000),
               .seed = rng.bits(),
               .min_p = one_of(0.f, 0.f, 0.02f, 0.5f),
               .repetition_penalty = one_of(1.f, 1.3f),
               .frequency_penalty = one_of(0.f, 0.4f),
               .presence_penalty = one_of(0.f, 0.7f),
               .top_logprobs = one_of(0, 1, 7, 20)};
    for (int64_t i = 0; i < v; ++i) logits_.as<float>()[i] = static_cast<float>(3 * rng.normal());
    for (int64_t i = 0; i < mask_.view().numel(); ++i)
      mask_.as<uint32_t>()[i] = static_cast<uint32_t>(rng.bits()) | 1u;
    for (int32_t id = 0; id < v; id += 1 + static_cast<int32_t>(rng.below(9)))
      terms_.push_back(
          {.id = id, .count = 1, .seen = 1, .bias = static_cast<float>(rng.below(3)) - 1});
    begin_ = {0, static_cast<int32_t>(terms_.size())};
    std::fill_n(top_logprobs_.as<float>(), kMaxTopLogprobs, kPoison);
    args = {.logits = logits_,
            .params = {&params_, 1},
            .steps = {&step_, 1},
            .ids = ids_,
            .logprobs = logprobs_,
            .top_ids = top_ids_,
            .top_logprobs = top_logprobs_};
    if (rng.below(2) == 0) args.terms = terms_, args.term_begin = begin_;
    if (rng.below(2) == 0) args.mask = mask_;
  }

  SampleArgs args;

 private:
  SamplingParams params_;
  uint64_t step_ = 3;
  std::vector<TokenTerm> terms_;
  std::vector<int32_t> begin_;
  const Buffer logits_, mask_;
  const Buffer ids_{DType::kI32, {1}}, logprobs_{DType::kF32, {1}};
  const Buffer top_ids_{DType::kI32, {1, kMaxTopLogprobs}},
      top_logprobs_{DType::kF32, {1, kMaxTopLogprobs}};
};

void expect_close(float got, double want) {
  EXPECT_NEAR(static_cast<double>(got), want, 1e-5 + 1e-6 * std::abs(want));
}

void check_row(const SampleArgs& args) {
  const std::vector<double> want = drawn_logprobs_oracle(args, 0);
  drawn_logprobs(args, 0);
  expect_close(args.logprobs.as<float>()[0], want[static_cast<size_t>(args.ids.as<int32_t>()[0])]);
  std::vector<double> order;
  for (const double logprob : want)
    if (logprob > -kInf) order.push_back(logprob);
  std::sort(order.rbegin(), order.rend());
  const size_t listed = std::min(static_cast<size_t>(args.params[0].top_logprobs), order.size());
  for (size_t i = 0; i < kMaxTopLogprobs; ++i) {
    const int32_t id = args.top_ids.as<int32_t>()[i];
    const float logprob = args.top_logprobs.as<float>()[i];
    ASSERT_EQ(id >= 0, i < listed) << i;
    if (i >= listed) {
      EXPECT_EQ(logprob, -kInf);
      continue;
    }
    expect_close(logprob, order[i]);
    expect_close(logprob, want[static_cast<size_t>(id)]);
  }
}

TEST(DrawnLogprobs, AreOfTheDistributionOfTheDraw) {
  Rng rng(31);
  for (const int64_t v : {1, 3, 17, 1000, 20'000}) {
    for (int i = 0; i < 60; ++i) {
      SCOPED_TRACE(fmt::format("v {} case {}", v, i));
      const RandomRow row(rng, v);
      sample(Context{}, row.args);
      check_row(row.args);
    }
  }
}

// Without anything to process, they are those of the op.
TEST(DrawnLogprobs, OfPlainRowsAreThoseOfTheLogitsAsGiven) {
  const SamplingParams params{.top_logprobs = 3};
  const uint64_t step = 0;
  const Buffer logits(DType::kF32, {1, 4}), ids(DType::kI32, {1}), logprobs(DType::kF32, {1}),
      top_ids(DType::kI32, {1, 3}), top_logprobs(DType::kF32, {1, 3});
  for (int i = 0; i < 4; ++i) logits.as<float>()[i] = static_cast<float>(i) / 2;
  const SampleArgs args{.logits = logits,
                        .params = {&params, 1},
                        .steps = {&step, 1},
                        .ids = ids,
                        .logprobs = logprobs,
                        .top_ids = top_ids,
                        .top_logprobs = top_logprobs};
  sample(Context{}, args);
  const float one = logprobs.as<float>()[0], second = top_logprobs.as<float>()[1];
  logprobs.as<float>()[0] = top_logprobs.as<float>()[1] = kPoison;
  drawn_logprobs(args, 0);
  EXPECT_NEAR(logprobs.as<float>()[0], one, 1e-6);
  EXPECT_NEAR(top_logprobs.as<float>()[1], second, 1e-6);
  EXPECT_EQ(top_ids.as<int32_t>()[0], 3);
}

}  // namespace
}  // namespace dsv4
