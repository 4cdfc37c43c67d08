// Oracle of index_select.h, and random arguments for its tests and benchmarks.

#pragma once

#include <vector>

#include "dsv4/ops/model/index_select/index_select.h"
#include "dsv4/ops/parts/indexer/indexer_case.h"
#include "tests/harness/fill.h"

namespace dsv4 {

std::vector<double> index_select_oracle(const Context& context,
                                        const IndexSelectArgs& args);  // [t, k]

}  // namespace dsv4

namespace dsv4::test {

template <class Memory, class Random>
IndexSelectArgs random_index_select(Memory& memory, Random& random, const IndexShape& shape,
                                    int64_t k) {
  const IndexScoresArgs scores = random_index_scores(memory, random, shape);
  return {.q = scores.q,
          .weights = scores.weights,
          .weight_scale = scores.weight_scale,
          .keys = scores.keys,
          .pages = scores.pages,
          .sequence = scores.sequence,
          .visible = scores.visible,
          .max_visible = shape.n,
          .indices = memory.output(DType::kI32, {shape.t, k})};
}

}  // namespace dsv4::test
