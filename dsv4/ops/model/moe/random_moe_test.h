// Random arguments of a whole MoE block with its experts in test memory, for the tests of moe.h and
// moe_hidden.h.

#pragma once

#include <vector>

#include "dsv4/ops/model/moe/moe_case.h"
#include "dsv4/ops/parts/experts/images_case_test.h"
#include "tests/harness/arena.h"
#include "tests/harness/weights.h"

namespace dsv4::test {

struct MoeShape {
  int64_t t, d, e, k, inner;
  bool hash = false;
  bool normalize = true;
};

struct MoeCase {
  Arena arena;
  std::vector<ExpertWeights> routed, shared;
  MoeArgs args;
};

inline std::vector<ExpertWeights> random_moe_experts(Arena& arena, Rng& rng, const StoredAs& stored,
                                                     int64_t count, int64_t d, int64_t inner) {
  const auto w1 = random_stack(arena, rng, stored, count, inner, d);
  const auto w3 = random_stack(arena, rng, stored, count, inner, d);
  const auto w2 = random_stack(arena, rng, stored, count, d, inner);
  std::vector<ExpertWeights> table;
  for (size_t i = 0; i < w1.size(); ++i) table.push_back({.w1 = w1[i], .w3 = w3[i], .w2 = w2[i]});
  return table;
}

inline void fill_case(MoeCase& c, const MoeShape& s, const StoredAs& stored, const StoredAs& shared,
                      DType dtype) {
  Rng rng(static_cast<uint64_t>(s.t * 7919 + s.d + s.inner));
  c.routed = random_moe_experts(c.arena, rng, stored, s.e, s.d, s.inner);
  c.shared = random_moe_experts(c.arena, rng, shared, 1, s.d, 2 * s.inner);
  c.args = random_moe(c.arena, rng,
                      {.t = s.t,
                       .d = s.d,
                       .e = s.e,
                       .k = s.k,
                       .choice = s.hash ? Choice::kHash64 : Choice::kLearned,
                       .x = dtype},
                      [&] { return random_weight(c.arena, rng, {WeightFormat::kBF16}, s.e, s.d); });
  c.args.routed = c.routed, c.args.shared = c.shared, c.args.normalize = s.normalize;
}

// Routed experts in kernel images, which only devices read. Returns args with those of the file.
inline MoeArgs fill_images(MoeCase& c, const MoeShape& shape, const ImageSource& up,
                           const ImageSource& down,
                           const StoredAs& shared = {WeightFormat::kFp8Block}) {
  fill_case(c, {shape.t, shape.d, shape.e, shape.k, shape.inner, shape.hash},
            {WeightFormat::kMxfp4}, shared, DType::kBF16);
  Rng rng(static_cast<uint64_t>(shape.e));
  c.routed = experts_with_images(c.arena, rng, shape.e, shape.d, shape.inner, up, down);
  MoeArgs file = c.args;
  file.routed = c.routed;
  c.args.routed = pack_images(c.arena, c.routed);
  return file;
}

}  // namespace dsv4::test
