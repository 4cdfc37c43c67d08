// Oracle of embed.h, and random arguments for its tests and benchmarks.

#pragma once

#include <vector>

#include "dsv4/ops/model/embed/embed.h"
#include "tests/harness/fill.h"

namespace dsv4 {

std::vector<double> embed_oracle(const EmbedArgs& args);  // [t, m, d]

}  // namespace dsv4

namespace dsv4::test {

struct EmbedShape {
  int64_t t = 1, m = 4, d = 64, vocabulary = 37;
  DType table = DType::kBF16, out = DType::kBF16;
};

template <class Memory, class Random>
EmbedArgs random_embed(Memory& memory, Random& random, const EmbedShape& shape) {
  const TensorView table = memory.input(shape.table, {shape.vocabulary, shape.d});
  const TensorView ids = memory.input(DType::kI32, {shape.t});
  if (shape.table == DType::kF16) {  // any finite code, subnormals included
    for (int64_t i = 0; i < table.numel(); ++i)
      table.as<uint16_t>()[i] = static_cast<uint16_t>(random.bits() & 0xbbffu);
  } else {
    fill_normal(table, random);
  }
  fill_ints(ids, random, -1, shape.vocabulary);
  return {.ids = ids, .table = table, .out = memory.output(shape.out, {shape.t, shape.m, shape.d})};
}

}  // namespace dsv4::test
