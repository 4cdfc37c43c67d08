#include "dsv4/plan/step_cost.h"

#include <gtest/gtest.h>

#include "dsv4/plan/synthetic.h"

namespace dsv4 {
namespace {

// By hand for a layer of Flash without compression: wq_a 1024 x 4096, wq_b 32768 x 1024, wkv 512 x
// 4096, wo_a 8192 x 4096, wo_b 4096 x 8192, three shared matrices of 2048 x 4096, all FP8 with a
// scale per 128 x 128; gate 256 x 4096 bf16, two mixes 24 x 16384 f32, that of the head 4 x 16384;
// head 129280 x 4096 bf16. Ops without weights add less than 1 % of the flops.
TEST(StepCost, CountsALayerAndTheHead) {
  const Model model = synthetic_model("flash", recipe_of_flags("k3", ""), 1, 1);
  const double fp8 =
      1024. * 4096 + 32768. * 1024 + 512. * 4096 + 2 * 8192. * 4096 + 3 * 2048. * 4096;
  const double expert = 3 * 2048. * 4096;
  const StepCost one = decode_cost(model, Numerics::kOfficial, 1, 4096);
  EXPECT_NEAR(one.weight_bytes,
              fp8 * (1 + 1. / 16384) + 2 * 256. * 4096 + 4 * (2 * 24. + 4) * 16384 +
                  6 * expert * 3.25 / 8 + 2 * 129280. * 4096,
              1e3);
  const double flops =
      2 * (fp8 + 256. * 4096 + (2 * 24. + 4) * 16384 + 6 * expert + 129280. * 4096) +
      4. * 64 * 512 * 128;
  EXPECT_GE(one.flops, flops);
  EXPECT_LT(one.flops, 1.01 * flops);
  EXPECT_EQ(one.cache_bytes, 128 * 584);
}

TEST(StepCost, TokensShareWeightsButNotRows) {
  const Model model = synthetic_model("flash", recipe_of_flags("k3", ""), 4, 1);
  const StepCost one = decode_cost(model, Numerics::kOfficial, 1, 65536);
  const StepCost many = decode_cost(model, Numerics::kOfficial, 32, 65536);
  EXPECT_NEAR(many.flops / one.flops, 32, 1e-9);
  EXPECT_NEAR(many.cache_bytes / one.cache_bytes, 32, 1e-9);
  EXPECT_LT(many.weight_bytes, 20 * one.weight_bytes);
  // 4 layers: two with the window alone, one with 512 of 16384 entries and their keys, one with
  // 512.
  EXPECT_EQ(one.cache_bytes, 4 * 128 * 584. + 2 * 512 * 584. + 16384 * 68.);
}

TEST(StepCost, EveryChunkOfAPromptReadsTheWeights) {
  const Model model = synthetic_model("flash", recipe_of_flags("k3", ""), 2, 1);
  const StepCost whole = prefill_cost(model, Numerics::kOfficial, 8192, 8192);
  const StepCost parts = prefill_cost(model, Numerics::kOfficial, 8192, 4096);
  EXPECT_NEAR(parts.flops / whole.flops, 1, 1e-9);
  EXPECT_GT(parts.weight_bytes, 1.5 * whole.weight_bytes);
}

}  // namespace
}  // namespace dsv4
