// NaN and infinity in weights: whatever they do to a step, it ends in an error with op and weight.

#include "dsv4/engine/check_numbers.h"

#include <gtest/gtest.h>

#include <cmath>

#include "dsv4/engine/engine.h"
#include "dsv4/engine/score.h"
#include "dsv4/engine/workspace.h"
#include "tests/harness/errors.h"
#include "tests/harness/random_model.h"
#include "tests/harness/tiny_model.h"
#if DSV4_CUDA
#include "dsv4/device/device.h"
#endif

namespace dsv4 {
namespace {

struct Sink : TokenSink {
  void on_token(RequestId, const Sampled&) override { ++tokens; }
  void on_finish(RequestId, Finish) override {}
  int tokens = 0;
};

// A random model, one tensor of which holds NaN (everywhere: a single value may have no effect).
Model damaged_model(const std::string& damaged) {
  std::map<std::string, TensorMeta> tensors;
  const ModelConfig config = test::tiny_config();
  for (const NamedTensor& tensor : official_tensor_list(config, false))
    tensors.emplace(tensor.name, tensor.meta);
  EXPECT_TRUE(damaged.empty() || tensors.count(damaged) == 1) << damaged;
  Rng rng(5);
  return Model::blank("random model", config, tensors,
                      [&](const std::string& name, const TensorView& view) {
                        if (view.dtype == DType::kI64)
                          return test::fill_hash_table(view, config.num_experts);
                        test::fill_random(name, view, rng);
                        if (name == damaged)
                          std::fill_n(reinterpret_cast<uint8_t*>(view.data), view.bytes(),
                                      uint8_t{0xff});  // NaN in every float dtype
                      });
}

std::vector<int32_t> prompt(int64_t tokens) {
  std::vector<int32_t> ids(static_cast<size_t>(tokens));
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int32_t>(i * 7 % 40);
  return ids;
}

std::string error_of_run(const std::string& damaged, bool check_numbers = false) {
  const Model model = damaged_model(damaged);
  Engine engine(model, {.max_tokens = 200, .check_numbers = check_numbers});
  Sink sink;
  engine.submit(prompt(160), {.sampling = {.temperature = 0}, .max_new_tokens = 4}, sink);
  return test::error_of(ErrorCode::kBadInput, [&] {
    while (engine.step()) {
    }
  });
}

TEST(CheckNumbers, AGoodModelPasses) {
  const Model model = damaged_model("");
  Engine engine(model, {.max_tokens = 200, .check_numbers = true});
  Sink sink;
  engine.submit(prompt(160), {.sampling = {.temperature = 0}, .max_new_tokens = 4}, sink);
  while (engine.step()) {
  }
  EXPECT_EQ(sink.tokens, 4);
}

// What only selects never reaches the logits: without the checks these models answer.
TEST(CheckNumbers, SelectionByNaNIsAnError) {
  EXPECT_TRUE(
      test::says(error_of_run("layers.2.ffn.gate.bias"), "router with layers.2.ffn.gate.bias: "));
  EXPECT_TRUE(test::says(error_of_run("layers.1.attn.indexer.weights_proj.weight"),
                         "linear with layers.1.attn.indexer.weights_proj.weight: row 0"));
  EXPECT_TRUE(test::says(error_of_run("layers.1.attn.indexer.compressor.norm.weight"),
                         "rms_norm with layers.1.attn.indexer.compressor.norm.weight: row 0"));
}

TEST(CheckNumbers, LogitsThatAreNoNumbersNameTheFirstOp) {
  EXPECT_TRUE(test::says(error_of_run("layers.0.attn.q_norm.weight"),
                         "rms_norm with layers.0.attn.q_norm.weight: row 0, column 0"));
  EXPECT_TRUE(test::says(error_of_run("layers.3.hc_ffn_base"), "hc_pre with layers.3.hc_ffn_"));
  EXPECT_TRUE(test::says(error_of_run("norm.weight"), "rms_norm with norm.weight"));
}

TEST(CheckNumbers, EveryStepIsCheckedWhenAsked) {
  const std::string found = error_of_run("layers.1.attn.attn_sink", true);
  EXPECT_TRUE(test::says(found, "sparse_mla with layers.1.attn.attn_sink"));
}

TEST(CheckNumbers, ScoringNamesThePlaceToo) {
  const Model model = damaged_model("layers.3.attn.kv_norm.weight");
  const std::string found = test::error_of(ErrorCode::kBadInput, [&] {
    score(model, Context{}, prompt(40), 16, [](int64_t, const ConstTensorView&) {});
  });
  EXPECT_TRUE(test::says(found, "rms_norm with layers.3.attn.kv_norm.weight: row 0"));
  EXPECT_TRUE(test::says(found, "inspect --verify"));
}

#if DSV4_CUDA
// An engine on a GPU plans its workspace with the calls of a step whose tensors have no memory.
TEST(CheckNumbers, PlanningAStepReadsNothing) {
  const Model model = damaged_model("");
  const std::unique_ptr<Device> hopper =
      Device::dry_run({.name = "H", .major = 9, .num_sms = 132, .max_smem_per_block = 227 << 10});
  CheckNumbers check(model);
  const Context context{.numerics = Numerics::kExact, .device = hopper.get(), .observer = &check};
  EXPECT_GT(plan_workspace(model, context, {.max_tokens = 200, .max_batch_tokens = 64}, 0).step, 0);
}
#endif

}  // namespace
}  // namespace dsv4
