// fp64 oracles of sample.h, and random arguments for its tests, emulated test and benchmark.

#pragma once

#include <algorithm>
#include <array>
#include <span>
#include <vector>

#include "dsv4/base/bits.h"
#include "dsv4/ops/model/sample/sample.h"
#include "tests/harness/fill.h"

namespace dsv4 {

struct SampleWant {
  std::vector<double> ids;           // [b]
  std::vector<double> logprobs;      // [b]
  std::vector<double> top_ids;       // [b, n], empty without top_ids
  std::vector<double> top_logprobs;  // [b, n]
};

SampleWant sample_oracle(const SampleArgs& args);

// Probability of every id after temperature and cuts. [v]
std::vector<double> sample_distribution(const SamplingParams& params, const float* logits,
                                        int64_t v);

// What drawn_logprobs() is about: log-probability of every id of a row; -inf: it cannot be drawn.
std::vector<double> drawn_logprobs_oracle(const SampleArgs& args, int64_t row);  // [v]

}  // namespace dsv4

namespace dsv4::test {

// Which of the optional arguments a case has.
struct Features {
  bool terms = false, mask = false, top = false;
};

// The arguments of a call but for the contents of the logits, in memory that every implementation
// can read.
class SampleCall {
 public:
  SampleArgs args;
  std::span<SamplingParams> params;
  std::span<uint64_t> steps;

  template <class Memory>
  SampleCall(Memory& memory, int64_t b, int64_t v, Features features, Rng& rng) {
    const auto n = static_cast<size_t>(b);
    const auto bytes = static_cast<int64_t>(sizeof(SamplingParams));
    params = {reinterpret_cast<SamplingParams*>(memory.input(DType::kU8, {b, bytes}).data), n};
    steps = {memory.input(DType::kI64, {b}).template as<uint64_t>(), n};
    std::fill(params.begin(), params.end(), SamplingParams{});
    std::fill(steps.begin(), steps.end(), 0);
    args = {.logits = memory.input(DType::kF32, {b, v}),
            .params = params,
            .steps = steps,
            .ids = memory.output(DType::kI32, {b}),
            .logprobs = memory.output(DType::kF32, {b})};
    if (features.terms) add_terms(memory, b, v, rng);
    if (features.mask) add_mask(memory, b, v, rng);
    if (!features.top) return;
    args.top_ids = memory.output(DType::kI32, {b, kMaxTopLogprobs});
    args.top_logprobs = memory.output(DType::kF32, {b, kMaxTopLogprobs});
  }

  // Every parameter at random.
  void randomize(Rng& rng) {
    const auto one_of = [&](auto... values) {
      const std::array all{values...};
      return all[static_cast<size_t>(rng.below(static_cast<int64_t>(all.size())))];
    };
    for (size_t r = 0; r < params.size(); ++r) {
      params[r] = {.temperature = one_of(0.f, 0.3f, 1.f, 5.f),
                   .top_p = one_of(1.f, 0.95f, 0.3f),
                   .top_k = one_of(0, 1, 5, 1'000'000),
                   .seed = rng.bits(),
                   .min_p = one_of(0.f, 0.f, 0.02f, 0.5f),
                   .repetition_penalty = one_of(1.f, 1.3f, 0.8f),
                   .frequency_penalty = one_of(0.f, 0.4f, -0.1f),
                   .presence_penalty = one_of(0.f, 0.7f),
                   .top_logprobs = one_of(0, 1, 7, 20)};
      steps[r] = rng.bits();
    }
  }

 private:
  // Up to a third of the vocabulary, row by row; every third row has none.
  template <class Memory>
  void add_terms(Memory& memory, int64_t b, int64_t v, Rng& rng) {
    std::vector<TokenTerm> terms;
    const TensorView begin = memory.input(DType::kI32, {b + 1});
    begin.as<int32_t>()[0] = 0;
    for (int64_t r = 0; r < b; ++r) {
      for (int64_t id = 0; id < v && r % 3 != 1; ++id) {
        if (rng.below(3 + v / 1000) != 0) continue;
        const auto count = static_cast<int32_t>(rng.below(4));
        terms.push_back({.id = static_cast<int32_t>(id),
                         .count = count,
                         .seen = count > 0 || rng.below(2) == 0 ? 1 : 0,
                         .bias = static_cast<float>(rng.below(3) - 1)});
      }
      begin.as<int32_t>()[r + 1] = static_cast<int32_t>(terms.size());
    }
    const auto n = static_cast<int64_t>(terms.size());
    const TensorView list = memory.input(DType::kU8, {n, static_cast<int64_t>(sizeof(TokenTerm))});
    std::copy(terms.begin(), terms.end(), reinterpret_cast<TokenTerm*>(list.data));
    memory.keep_order(begin), memory.keep_order(list);
    args.terms = {reinterpret_cast<const TokenTerm*>(list.data), terms.size()};
    args.term_begin = {begin.as<int32_t>(), static_cast<size_t>(b + 1)};
  }
  template <class Memory>
  void add_mask(Memory& memory, int64_t b, int64_t v, Rng& rng) {
    const TensorView mask = memory.input(DType::kI32, {b, ceil_div(v, 32)});
    for (int64_t i = 0; i < mask.numel(); ++i)
      mask.as<uint32_t>()[i] = static_cast<uint32_t>(rng.bits()) | 1u;
    args.mask = mask;
  }
};

}  // namespace dsv4::test
