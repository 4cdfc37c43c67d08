// The kernel of sample.h on the emulator: teams of two CTAs, against the CPU implementation, bit by
// bit.

#include <gtest/gtest.h>

#include <cstring>

#include "dsv4/base/bits.h"
#include "dsv4/base/rng.h"
#include "dsv4/ops/model/sample/kernel.cuh"
#include "dsv4/ops/model/sample/sample_case.h"
#include "tests/emulator/launch.h"
#include "tests/harness/arena.h"

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
  int32_t id;
  float logprob;
  int32_t top_ids[kMaxTopLogprobs];
  float top_logprobs[kMaxTopLogprobs];
};

// One call, for the CPU and for the emulator.
class Call {
 public:
  explicit Call(const Case& which)
      : rng_(static_cast<uint64_t>(which.v) + which.params.seed),
        changes_(which.params.repetition_penalty != 1),
        call_(arena_, 1, which.v, {.terms = changes_, .mask = changes_, .top = true}, rng_) {
    call_.params[0] = which.params, call_.steps[0] = 12;
    auto* logits = const_cast<float*>(call_.args.logits.as<float>());
    for (int i = 0; i < which.v; ++i) logits[i] = which.logit(i, rng_);
    arena_.freeze();
  }

  Result on_cpu() {
    arena_.prepare();
    sample(Context{}, call_.args);
    return result();
  }

  Result on_emulator(uint64_t seed) {
    const SampleArgs& a = call_.args;
    const auto v = static_cast<int>(a.logits.dim(1));
    const sample_kernel::Inputs in{
        .logits = a.logits.as<float>(),
        .stride = v,
        .v = v,
        .slice = static_cast<int>(align_up(ceil_div(v, kCtas), 4)),
        .bits = sample_kernel::mass_bits(v),
        .params = a.params.data(),
        .steps = a.steps.data(),
        .terms = a.terms.data(),
        .term_begin = a.term_begin.empty() ? nullptr : a.term_begin.data(),
        .mask = changes_ ? a.mask.as<uint32_t>() : nullptr,
        .mask_stride = ceil_div(v, 32)};
    const sample_kernel::Outputs out{.ids = a.ids.as<int32_t>(),
                                     .logprobs = a.logprobs.as<float>(),
                                     .top_ids = a.top_ids.as<int32_t>(),
                                     .top_logprobs = a.top_logprobs.as<float>(),
                                     .top = kMaxTopLogprobs};
    const size_t shared =
        sizeof(sample_kernel::Shared<kCtas>) + sizeof(float) * static_cast<size_t>(in.slice);
    arena_.prepare();
    emulator::launch({.grid = kCtas,
                      .block = sample_kernel::kThreads,
                      .cluster = kCtas,
                      .shared = shared,
                      .seed = seed},
                     [&] { sample_kernel::sample_kernel<kCtas>(in, out); });
    arena_.verify();
    return result();
  }

 private:
  Result result() const {
    const SampleArgs& a = call_.args;
    Result result{.id = *a.ids.as<int32_t>(), .logprob = *a.logprobs.as<float>()};
    std::memcpy(result.top_ids, a.top_ids.data, sizeof(result.top_ids));
    std::memcpy(result.top_logprobs, a.top_logprobs.data, sizeof(result.top_logprobs));
    return result;
  }

  test::Arena arena_;
  Rng rng_;
  bool changes_;
  test::SampleCall call_;
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
