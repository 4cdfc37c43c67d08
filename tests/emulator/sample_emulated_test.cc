// The kernel of sample.h on the emulator: teams of two CTAs, against the CPU implementation, bit by
// bit.

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "dsv4/base/bits.h"
#include "dsv4/base/rng.h"
#include "dsv4/ops/model/sample/kernel.cuh"
#include "dsv4/ops/model/sample/sample.h"
#include "dsv4/tensor/buffer.h"
#include "tests/emulator/launch.h"

namespace dsv4 {
namespace {

constexpr int kCtas = 2;

struct Case {
  const char* name;
  int v;
  SamplingParams params;
  float (*logit)(int id, Rng& rng);
};

float normal(int, Rng& rng) {
  return static_cast<float>(rng.normal());
}
float equal(int, Rng&) {
  return 0.5f;
}
// More tokens in a bin than are compared all with all.
float two_heaps(int id, Rng& rng) {
  return (id % 5 == 0 ? 2.f : 0.f) + 0x1p-20f * static_cast<float>(rng.below(700));
}

float one_hot(int id, Rng&) {
  return id == 77 ? 90.f : 0.f;
}
// A bin of a further division that has more tokens than are compared all with all.
float scales(int id, Rng& rng) {
  const float step = id % 50 == 0 ? 0x1p-4f : id % 5 == 0 ? 0x1p-16f : 0;
  return 1 + step + 0x1p-23f * static_cast<float>(rng.below(2));
}

const Case kCases[] = {
    {"greedy", 700, {.temperature = 0, .top_logprobs = 5}, normal},
    {"drawn", 700, {.temperature = 1.5f, .top_p = 0.9f, .top_k = 50, .seed = 3}, normal},
    {"ties", 900, {.top_p = 0.7f, .seed = 5, .top_logprobs = 20}, equal},
    {"a full bin", 3000, {.top_p = 0.95f, .seed = 9, .min_p = 0.01f}, two_heaps},
    {"several cuts", 2500, {.top_p = 0.5f, .top_k = 700, .seed = 6, .top_logprobs = 20}, normal},
    {"one likely token", 1500, {.temperature = 9, .top_p = 0.9999f, .seed = 2}, one_hot},
    {"scales", 2600, {.top_p = 0.3f, .top_k = 2500, .seed = 8, .top_logprobs = 7}, scales},
    {"a slice without tokens", 1, {.seed = 1, .top_logprobs = 3}, normal},
    {"penalties",
     500,
     {.temperature = 0.8f,
      .seed = 4,
      .repetition_penalty = 1.3f,
      .frequency_penalty = 0.2f,
      .presence_penalty = 0.1f,
      .top_logprobs = 2},
     normal},
};

struct Result {
  int32_t id = -7;
  float logprob = 0;
  int32_t top_ids[kMaxTopLogprobs] = {};
  float top_logprobs[kMaxTopLogprobs] = {};
};

// One call, for the CPU and for the emulator.
class Call {
 public:
  explicit Call(const Case& which) : params_(which.params), v_(which.v) {
    Rng rng(static_cast<uint64_t>(v_) + which.params.seed);
    for (int i = 0; i < v_; ++i) logits_.push_back(which.logit(i, rng));
    mask_.resize(static_cast<size_t>(ceil_div(v_, 32)));
    const bool changes = which.params.repetition_penalty != 1;
    for (uint32_t& word : mask_) word = changes ? static_cast<uint32_t>(rng.bits()) : ~0u;
    for (int id = 0; changes && id < v_; id += 7)
      terms_.push_back({.id = id, .count = id % 3, .seen = 1, .bias = 0.25f});
    term_begin_ = {0, static_cast<int32_t>(terms_.size())};
  }

  Result on_cpu() {
    Result result;
    const auto view = [](DType dtype, std::initializer_list<int64_t> shape, auto* data) {
      return TensorView(TensorMeta::contiguous(dtype, shape), reinterpret_cast<std::byte*>(data));
    };
    sample(Context{},
           {.logits = view(DType::kF32, {1, v_}, logits_.data()),
            .params = {&params_, 1},
            .steps = {&step_, 1},
            .ids = view(DType::kI32, {1}, &result.id),
            .logprobs = view(DType::kF32, {1}, &result.logprob),
            .terms = terms_,
            .term_begin = term_begin_,
            .mask = view(DType::kI32, {1, ceil_div(v_, 32)}, mask_.data()),
            .top_ids = view(DType::kI32, {1, kMaxTopLogprobs}, result.top_ids),
            .top_logprobs = view(DType::kF32, {1, kMaxTopLogprobs}, result.top_logprobs)});
    return result;
  }

  Result on_emulator(uint64_t seed) {
    Result result;
    const sample_kernel::Inputs in{.logits = logits_.data(),
                                   .stride = v_,
                                   .v = v_,
                                   .slice = static_cast<int>(align_up(ceil_div(v_, kCtas), 4)),
                                   .bits = sample_kernel::mass_bits(v_),
                                   .params = &params_,
                                   .steps = &step_,
                                   .terms = terms_.data(),
                                   .term_begin = term_begin_.data(),
                                   .mask = mask_.data(),
                                   .mask_stride = ceil_div(v_, 32)};
    const sample_kernel::Outputs out{.ids = &result.id,
                                     .logprobs = &result.logprob,
                                     .top_ids = result.top_ids,
                                     .top_logprobs = result.top_logprobs,
                                     .top = kMaxTopLogprobs};
    const size_t shared =
        sizeof(sample_kernel::Shared<kCtas>) + sizeof(float) * static_cast<size_t>(in.slice);
    emulator::launch({.grid = kCtas,
                      .block = sample_kernel::kThreads,
                      .cluster = kCtas,
                      .shared = shared,
                      .seed = seed},
                     [&] { sample_kernel::sample_kernel<kCtas>(in, out); });
    return result;
  }

 private:
  SamplingParams params_;
  int v_;
  uint64_t step_ = 12;
  std::vector<float> logits_;
  std::vector<uint32_t> mask_;
  std::vector<TokenTerm> terms_;
  std::vector<int32_t> term_begin_;
};

TEST(SampleEmulated, HasTheBitsOfTheCpu) {
  for (const Case& which : kCases) {
    SCOPED_TRACE(which.name);
    Call call(which);
    const Result want = call.on_cpu();
    for (uint64_t seed = 0; seed < 2; ++seed) {
      const Result got = call.on_emulator(seed);
      EXPECT_EQ(got.id, want.id);
      EXPECT_EQ(std::memcmp(&got, &want, sizeof(got)), 0) << "seed " << seed;
    }
  }
}

}  // namespace
}  // namespace dsv4
