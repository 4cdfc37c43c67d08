#include "bench/op_bench.h"

#include <cmath>

#include "dsv4/base/rng.h"
#include "dsv4/formats/float16.h"

namespace dsv4::bench {

namespace {

void fill_uniform(const TensorView& view, uint64_t seed, float sigma, float mean) {
  const float width = 2 * std::sqrt(3.f) * sigma;
#pragma omp parallel for
  for (int64_t i = 0; i < view.numel(); ++i) {
    const double draw = random_uniform(seed, static_cast<uint64_t>(i));
    const float value = mean + (static_cast<float>(draw) - 0.5f) * width;
    if (view.dtype == DType::kF32) {
      view.as<float>()[i] = value;
    } else {
      view.as<uint16_t>()[i] = f32_to_bf16(value);
    }
  }
}

}  // namespace

void fill(const Tensor& tensor, float scale) {
  fill_uniform(tensor.view(), 1, scale, 0);
}

void fill_normal(const TensorView& view, Random& random, double sigma, double mean) {
  fill_uniform(view, random.bits(), static_cast<float>(sigma), static_cast<float>(mean));
}

void fill_ascending(const Tensor& tensor, int first) {
  for (int64_t i = 0; i < tensor.view().numel(); ++i)
    tensor.as<int32_t>()[i] = first + static_cast<int32_t>(i);
}

std::vector<Entry>& entries() {
  static std::vector<Entry> all;
  return all;
}

Cost mean_cost(Session& session) {
  constexpr int kCalls = 16;
  Cost total;
  for (int i = 0; i < kCalls; ++i) {
    session.next();
    const Cost cost = session.cost();
    total.bytes += cost.bytes / kCalls, total.flops += cost.flops / kCalls;
  }
  return total;
}

}  // namespace dsv4::bench
