// fp64 oracle of router.h, and random arguments for its tests and benchmarks.

#pragma once

#include <vector>

#include "dsv4/ops/parts/router/router.h"
#include "tests/harness/fill.h"

namespace dsv4 {

struct RouterAnswer {
  std::vector<double> experts, weights;  // [t, k]
};

RouterAnswer router_oracle(const RouterArgs& args);

}  // namespace dsv4

namespace dsv4::test {

// Learned routing. Logits lie on both sides of softplus's threshold of 20.
template <class Memory, class Random>
RouterArgs random_router(Memory& memory, Random& random, int64_t t, int64_t e, int64_t k) {
  const TensorView logits = memory.input(DType::kF32, {t, e});
  const TensorView bias = memory.input(DType::kF32, {e});
  fill_normal(logits, random, 12.0);
  fill_normal(bias, random, 1.0);
  return {.logits = logits,
          .bias = bias,
          .route_scale = 1.5f,
          .experts = memory.output(DType::kI32, {t, k}),
          .weights = memory.output(DType::kF32, {t, k})};
}

}  // namespace dsv4::test
