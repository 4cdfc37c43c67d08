#include <algorithm>
#include <utility>

#include "bench/op_bench.h"
#include "dsv4/base/error.h"
#include "dsv4/ops/model/sample/sample_case.h"

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

// The first kTerms multiples of 64, in every row.
void add_terms(bench::Arena& arena, int64_t b, SampleArgs& args) {
  const TensorView terms =
      arena.input(DType::kU8, {b * kTerms, static_cast<int64_t>(sizeof(TokenTerm))});
  const TensorView begin = arena.input(DType::kI32, {b + 1});
  auto* list = reinterpret_cast<TokenTerm*>(terms.data);
  for (int64_t i = 0; i < b * kTerms; ++i)
    list[i] = {.id = static_cast<int32_t>(i % kTerms * 64), .count = 1, .seen = 1, .bias = 0.5f};
  for (int64_t r = 0; r <= b; ++r) begin.as<int32_t>()[r] = static_cast<int32_t>(r * kTerms);
  args.terms = {list, static_cast<size_t>(b * kTerms)};
  args.term_begin = {begin.as<int32_t>(), static_cast<size_t>(b + 1)};
}

SampleArgs make_args(bench::Arena& arena, bench::Random& random, int64_t b, LogitOf logit,
                     const SamplingParams& how, bool everything) {
  test::SampleCall call(arena, b, kVocabulary, {.mask = everything, .top = everything}, random);
  std::fill(call.params.begin(), call.params.end(), how);
  std::fill(call.steps.begin(), call.steps.end(), 17);
  auto* logits = const_cast<float*>(call.args.logits.as<float>());
  for (int64_t i = 0; i < b * kVocabulary; ++i) logits[i] = logit(i % kVocabulary, random);
  if (everything) add_terms(arena, b, call.args);
  return call.args;
}

void add(const char* what, const char* row, LogitOf logit, const SamplingParams& params,
         bool everything = false) {
  for (const int64_t b : {1, 32}) {
    bench::register_case(fmt::format("sample/{} {} b:{}", what, row, b), sample,
                         [=](auto& arena, auto& random) {
                           return make_args(arena, random, b, logit, params, everything);
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
