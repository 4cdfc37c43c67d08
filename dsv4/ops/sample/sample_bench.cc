#include "bench/op_bench.h"
#include "dsv4/base/error.h"
#include "dsv4/base/rng.h"
#include "dsv4/ops/sample/sample.h"

namespace dsv4 {
namespace {

constexpr int64_t kVocabulary = 129280;

// Independent normal logits. sigma 4 is as peaked as text; 0.1 is nearly flat, the worst case, in
// which a draw needs half of the vocabulary sorted.
struct Case {
  bench::Tensor logits{DType::kF32, {1, kVocabulary}}, ids{DType::kI32, {1}};
  bench::Tensor logprobs{DType::kF32, {1}}, steps{DType::kI64, {1}};
  bench::Tensor params{DType::kU8, {sizeof(SamplingParams)}};
  SampleArgs args;

  Case(double sigma, const SamplingParams& how) {
    auto* chosen = reinterpret_cast<SamplingParams*>(params.view().data);
    *chosen = how;
    steps.as<uint64_t>()[0] = 17;
    Rng rng(1);
    for (int64_t i = 0; i < kVocabulary; ++i) {
      logits.as<float>()[i] = static_cast<float>(sigma * rng.normal());
    }
    args = {.logits = logits,
            .params = {chosen, 1},
            .steps = {steps.as<uint64_t>(), 1},
            .ids = ids,
            .logprobs = logprobs};
  }
};

void add(const char* what, double sigma, const SamplingParams& params) {
  bench::register_impls<SampleArgs>(fmt::format("sample/{} sigma {}", what, sigma), sample,
                                    [=] { return std::make_shared<Case>(sigma, params); });
}

const bool kRegistered = [] {
  for (const double sigma : {4.0, 0.1}) {
    add("greedy", sigma, {.temperature = 0});
    add("plain", sigma, {});
    add("top_p .95", sigma, {.top_p = 0.95f});
    add("top_k 40", sigma, {.top_k = 40});
  }
  return true;
}();

}  // namespace
}  // namespace dsv4
