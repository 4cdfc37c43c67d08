#include <cmath>

#include "bench/op_bench.h"
#include "dsv4/base/bits.h"
#include "dsv4/base/error.h"
#include "dsv4/base/rng.h"
#include "dsv4/ops/model/sample/sample.h"

namespace dsv4 {
namespace {

constexpr int64_t kVocabulary = 129280;
constexpr int64_t kTerms = 2000;

using LogitOf = float (*)(int64_t id, Rng& rng);

// As peaked as text.
float peaked(int64_t, Rng& rng) {
  return static_cast<float>(4 * rng.normal());
}
float flat(int64_t, Rng& rng) {
  return static_cast<float>(0.1 * rng.normal());
}
float equal(int64_t, Rng&) {
  return 1.f;
}
float one_hot(int64_t id, Rng&) {
  return id == 777 ? 90.f : 0.f;
}
// Most tokens lie close together on every scale, so that few bins hold all.
float scales_within_scales(int64_t id, Rng& rng) {
  const float step = id % 5000 == 0  ? 0x1p-4f
                     : id % 500 == 0 ? 0x1p-11f
                     : id % 50 == 0  ? 0x1p-18f
                                     : 0;
  return 1 + step + 0x1p-23f * static_cast<float>(rng.below(2));
}

struct Case {
  bench::Tensor logits, ids, logprobs, steps, params, terms, term_begin, mask, top_ids,
      top_logprobs;
  SampleArgs args;

  Case(int64_t b, LogitOf logit, const SamplingParams& how, bool everything)
      : logits(DType::kF32, {b, kVocabulary}),
        ids(DType::kI32, {b}),
        logprobs(DType::kF32, {b}),
        steps(DType::kI64, {b}),
        params(DType::kU8, {b, sizeof(SamplingParams)}),
        terms(DType::kU8, {b * kTerms, sizeof(TokenTerm)}),
        term_begin(DType::kI32, {b + 1}),
        mask(DType::kI32, {b, ceil_div(kVocabulary, 32)}),
        top_ids(DType::kI32, {b, kMaxTopLogprobs}),
        top_logprobs(DType::kF32, {b, kMaxTopLogprobs}) {
    const auto n = static_cast<size_t>(b);
    auto* chosen = reinterpret_cast<SamplingParams*>(params.view().data);
    std::fill_n(chosen, n, how);
    std::fill_n(steps.as<uint64_t>(), n, 17);
    Rng rng(1);
    for (int64_t i = 0; i < b * kVocabulary; ++i)
      logits.as<float>()[i] = logit(i % kVocabulary, rng);
    args = {.logits = logits,
            .params = {chosen, n},
            .steps = {steps.as<uint64_t>(), n},
            .ids = ids,
            .logprobs = logprobs};
    if (everything) add_everything(b, rng);
  }

 private:
  void add_everything(int64_t b, Rng& rng) {
    auto* list = reinterpret_cast<TokenTerm*>(terms.view().data);
    for (int64_t i = 0; i < b * kTerms; ++i)
      list[i] = {.id = static_cast<int32_t>(i % kTerms * 64), .count = 1, .seen = 1, .bias = 0.5f};
    for (int64_t r = 0; r <= b; ++r) term_begin.as<int32_t>()[r] = static_cast<int32_t>(r * kTerms);
    const int64_t words = b * ceil_div(kVocabulary, 32);
    for (int64_t i = 0; i < words; ++i) mask.as<uint32_t>()[i] = static_cast<uint32_t>(rng.bits());
    args.terms = {list, static_cast<size_t>(b * kTerms)};
    args.term_begin = {term_begin.as<int32_t>(), static_cast<size_t>(b + 1)};
    args.mask = mask;
    args.top_ids = top_ids, args.top_logprobs = top_logprobs;
  }
};

void add(const char* what, const char* row, LogitOf logit, const SamplingParams& params,
         bool everything = false) {
  for (const int64_t b : {1, 32}) {
    bench::register_impls<SampleArgs>(fmt::format("sample/{} {} b:{}", what, row, b), sample, [=] {
      return std::make_shared<Case>(b, logit, params, everything);
    });
  }
}

const bool kRegistered = [] {
  const std::pair<const char*, LogitOf> kRows[] = {{"peaked", peaked},
                                                   {"flat", flat},
                                                   {"equal", equal},
                                                   {"one hot", one_hot},
                                                   {"scales", scales_within_scales}};
  for (const auto& [name, logit] : kRows) {
    add("greedy", name, logit, {.temperature = 0});
    add("plain", name, logit, {});
    add("top_p .95", name, logit, {.top_p = 0.95f});
    add("top_k 40", name, logit, {.top_k = 40});
    add("everything", name, logit,
        {.temperature = 0.7f,
         .top_p = 0.9f,
         .top_k = 1000,
         .min_p = 1e-4f,
         .repetition_penalty = 1.1f,
         .frequency_penalty = 0.1f,
         .presence_penalty = 0.1f,
         .top_logprobs = 20},
        true);
  }
  return true;
}();

}  // namespace
}  // namespace dsv4
