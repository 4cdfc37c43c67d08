#include "dsv4/plan/step_table.h"
#include "dsv4/base/mapped_file.h"

#include <gtest/gtest.h>

#include <fstream>

#include <map>
#include <nlohmann/json.hpp>
#include <numeric>

#include "tests/harness/errors.h"

namespace dsv4 {
namespace {

// Calls of an op and implementation, "sparse_mla/cpu", at any depth.
std::map<std::string, int64_t> counts_of(const StepTable& table) {
  std::map<std::string, int64_t> counts;
  for (const StepCalls& calls : table.calls)
    counts[std::string(calls.op) + "/" + std::string(calls.impl)] += calls.calls;
  return counts;
}

TEST(StepTable, CallsOfTheHost) {
  const std::vector<StepTable> tables = step_tables(
      {.release = "flash", .formats = recipe_of_flags("k3-e4m3", ""), .tokens = {2, 100}});
  ASSERT_EQ(tables.size(), 2u);
  EXPECT_TRUE(tables[0].decode);
  EXPECT_FALSE(tables[1].decode);
  for (const StepTable& table : tables) {
    const std::map<std::string, int64_t> counts = counts_of(table);
    EXPECT_EQ(counts.at("sparse_mla/cpu"), 43);
    EXPECT_EQ(counts.at("index_select/parts"), 21);
    EXPECT_EQ(counts.at("experts/cpu"), 2 * 43) << "routed and shared";
    EXPECT_EQ(table.calls.front().op, "embed");
  }
}

// A step that enters its tokens has the block's projections and one row of its window more, and a
// pass of the block is one layer without a compressor.
TEST(StepTable, CallsOfTheMtpBlock) {
  StepTableRequest request{
      .release = "flash", .formats = recipe_of_flags("k3-e4m3", ""), .tokens = {2}};
  const auto plain = counts_of(step_tables(request).front());
  request.drafter = DrafterKind::kMtp;
  const std::vector<StepTable> tables = step_tables(request);
  ASSERT_EQ(tables.size(), 2u);
  EXPECT_FALSE(tables[0].draft);
  EXPECT_TRUE(tables[1].draft);
  auto step = counts_of(tables[0]);
  auto draft = counts_of(tables[1]);
  EXPECT_EQ(step.at("kv_insert/cpu"), plain.at("kv_insert/cpu") + 1);
  EXPECT_EQ(step.at("sparse_mla/cpu"), plain.at("sparse_mla/cpu"));
  EXPECT_EQ(step.at("experts/cpu"), plain.at("experts/cpu"));
  EXPECT_EQ(draft.at("sparse_mla/cpu"), 1);
  EXPECT_EQ(draft.at("experts/cpu"), 2) << "routed and shared";
  EXPECT_EQ(draft.count("index_select/parts"), 0u);
}

// Calls of `parts` stand below it, one step deeper.
TEST(StepTable, PartsComeBeforeTheirCalls) {
  const StepTable table =
      step_tables({.release = "flash", .formats = recipe_of_flags("k3-e4m3", ""), .tokens = {1}})
          .front();
  int depth = 0;
  bool parts = true;
  for (const StepCalls& calls : table.calls) {
    EXPECT_LE(calls.depth, parts ? depth + 1 : depth);
    depth = calls.depth, parts = calls.impl == "parts";
  }
}

#if DSV4_CUDA
// One launch of each of these kernels is a call of the op: the committed trace of a step was taken
// with the same model, context and numerics.
TEST(StepTable, DryRunAgreesWithTheTraceOfARealStep) {
  const std::map<std::string, std::string> kernel_of = {
      {"attention_in/sm90_few", "query_kernel"},  {"sparse_mla/sm90_fp8", "sparse_mla_fp8_kernel"},
      {"index_select/sm90_few", "select_kernel"}, {"moe/sm90_fused", "gate_up_kernel"},
      {"rms_norm/cuda", "rms_norm_kernel"},       {"linear/cuda", "gemv_kernel"}};
  std::ifstream file("bench/results/gpu-h200/decode_trace.json");
  const auto trace = nlohmann::json::parse(file);
  std::map<std::string, int64_t> launches;
  for (const auto& kernel : trace.at("by_kernel"))
    launches[kernel.at("kernel")] = kernel.at("launches");
  const auto counts = counts_of(step_tables({.release = "flash",
                                             .formats = recipe_of_flags("k3-e4m3", ""),
                                             .gpu = "h200",
                                             .tokens = {trace.at("batch")},
                                             .context = trace.at("context")})
                                    .front());
  for (const auto& [op, kernel] : kernel_of) {
    ASSERT_TRUE(counts.contains(op)) << op;
    EXPECT_EQ(counts.at(op), launches[kernel]) << op;
  }
}

// --impl, once for the call with the inverse RoPE and once for the call that its parts make
// (docs/numerics.md).
TEST(StepTable, ChosenImplementations) {
  const std::vector<StepTable> tables =
      step_tables({.release = "flash",
                   .formats = recipe_of_flags("k3-e4m3", ""),
                   .gpu = "h200",
                   .tokens = {1, 4096},
                   .choices = {{"sparse_mla", "cuda_mma"}, {"sparse_mla", "parts"}}});
  for (const StepTable& table : tables) {
    const std::map<std::string, int64_t> counts = counts_of(table);
    EXPECT_EQ(counts.at("sparse_mla/parts"), 43);
    EXPECT_EQ(counts.at("sparse_mla/cuda_mma"), 43);
    EXPECT_EQ(counts.count("sparse_mla/sm90_fp8"), 0u);
  }
}

// FP4 experts have the kernels of k-bit ones: decode, and a prompt.
TEST(StepTable, DryRunOfFp4Experts) {
  for (const WeightFormat fp4 : {WeightFormat::kMxfp4, WeightFormat::kNvfp4}) {
    const std::vector<StepTable> tables = step_tables(
        {.release = "flash", .formats = {{}, fp4}, .gpu = "h200", .tokens = {1, 32, 4096}});
    EXPECT_EQ(counts_of(tables[0]).at("moe/sm90_fused"), 43);
    EXPECT_EQ(counts_of(tables[1]).at("moe/sm90_few"), 43);
    const bool folds = fp4 == WeightFormat::kMxfp4;
    EXPECT_EQ(counts_of(tables[2])[folds ? "experts/sm90_grouped_e4m3" : "experts/sm90_grouped"],
              43);
  }
}

// A step that enters its tokens has a key of each stage more, and a block is three layers, then as
// many draws' worth of what follows from the guess before.
TEST(StepTable, CallsOfDspark) {
  StepTableRequest request{
      .release = "flash", .formats = recipe_of_flags("k3-e4m3", ""), .tokens = {2}};
  const auto plain = counts_of(step_tables(request).front());
  request.drafter = DrafterKind::kDspark;
  const std::vector<StepTable> tables = step_tables(request);
  ASSERT_EQ(tables.size(), 2u);
  auto step = counts_of(tables[0]), draft = counts_of(tables[1]);
  EXPECT_EQ(step.at("kv_insert/cpu"), plain.at("kv_insert/cpu") + 3);
  EXPECT_EQ(step.at("hc_mean/cpu"), 3);
  EXPECT_EQ(step.at("sparse_mla/cpu"), plain.at("sparse_mla/cpu"));
  EXPECT_EQ(step.at("experts/cpu"), plain.at("experts/cpu"));
  EXPECT_EQ(draft.at("sparse_mla/cpu"), 3);
  EXPECT_EQ(draft.at("experts/cpu"), 6) << "routed and shared";
  EXPECT_EQ(draft.at("embed/cpu"), 2 + 5);
  EXPECT_EQ(draft.count("index_select/parts"), 0u);
}

// A pass of the MTP block runs on the kernels of a window-only layer, and entering its tokens takes
// none of the kernels of the model away.
TEST(StepTable, DryRunOfTheMtpBlock) {
  for (const bool deterministic : {false, true}) {
    StepTableRequest request{.release = "flash",
                             .formats = recipe_of_flags("k3-e4m3", ""),
                             .gpu = "h200",
                             .tokens = {1, 3, 8, 32},
                             .batch_invariant = deterministic};
    const std::vector<StepTable> plain = step_tables(request);
    request.drafter = DrafterKind::kMtp;
    const std::vector<StepTable> tables = step_tables(request);
    ASSERT_EQ(tables.size(), 2 * plain.size());
    for (size_t i = 0; i < plain.size(); ++i) {
      SCOPED_TRACE(fmt::format("{} tokens, deterministic {}", plain[i].tokens, deterministic));
      const auto model = counts_of(plain[i]);
      auto step = counts_of(tables[2 * i]), draft = counts_of(tables[2 * i + 1]);
      for (const char* op : {"attention_in", "sparse_mla", "moe", "attention_out"}) {
        for (const auto& [name, calls] : model) {
          if (!name.starts_with(std::string(op) + "/")) continue;
          EXPECT_EQ(step[name], calls) << name;
        }
        int64_t of_layer = 0, known = 0;
        for (const auto& [name, calls] : draft) {
          if (!name.starts_with(std::string(op) + "/")) continue;
          of_layer += calls;
          known += model.contains(name) ? calls : 0;
          EXPECT_FALSE(name.ends_with("/cpu")) << name;
        }
        EXPECT_EQ(of_layer, 1) << op;
        EXPECT_EQ(known, 1) << op << ": a kernel that no layer of the model has";
      }
      // The copy of the head is read for one row and for two.
      EXPECT_EQ(draft["linear/sm90_few_kbit"], plain[i].tokens <= 2 ? 1 : 0);
    }
  }
}

// A block of one sequence runs on the kernels of a step of five tokens, and entering tokens for it
// takes none of the kernels of the model away.
TEST(StepTable, DryRunOfDspark) {
  StepTableRequest request{.release = "flash",
                           .formats = recipe_of_flags("k3-e4m3", ""),
                           .gpu = "h200",
                           .tokens = {1, 8}};
  const std::vector<StepTable> plain = step_tables(request);
  request.drafter = DrafterKind::kDspark;
  const std::vector<StepTable> tables = step_tables(request);
  ASSERT_EQ(tables.size(), 2 * plain.size());
  for (size_t i = 0; i < plain.size(); ++i) {
    auto step = counts_of(tables[2 * i]), draft = counts_of(tables[2 * i + 1]);
    for (const auto& [name, calls] : counts_of(plain[i])) {
      if (!name.starts_with("linear/")) {
        EXPECT_GE(step[name], calls) << name;
      }
    }
    EXPECT_EQ(step["hc_mean/cuda"], 3);
    EXPECT_EQ(draft["sparse_mla/sm90_fp8"], 3);
    EXPECT_EQ(draft["moe/sm90_few"], 3);
    for (const auto& [name, calls] : draft) EXPECT_FALSE(name.ends_with("/cpu")) << name;
  }
  auto one = counts_of(tables[1]);
  EXPECT_EQ(one["attention_in/sm90_few"], 3);
  EXPECT_EQ(one["attention_out/sm90_few"], 3);
  EXPECT_EQ(one["linear/sm90_few"], 1 + 5 + 2) << "head, markov_w2, confidences";
}

// The quantizer's command in README.md gives weights that the kernels of its table of speeds take.
TEST(StepTable, DryRunOfTheReadmesCommand) {
  const std::string experts =
      test::word_after(read_text_file("README.md"), "quantize demo -o demo-k3 --experts ");
  ASSERT_FALSE(experts.empty());
  const std::vector<StepTable> tables = step_tables({.release = "flash",
                                                     .formats = recipe_of_flags(experts, ""),
                                                     .gpu = "h200",
                                                     .tokens = {1, 32, 4096}});
  EXPECT_EQ(counts_of(tables[0]).at("moe/sm90_fused"), 43) << experts;
  EXPECT_EQ(counts_of(tables[1]).at("moe/sm90_few"), 43) << experts;
  EXPECT_EQ(counts_of(tables[2]).at("experts/sm90_grouped"), 43) << experts;
}

TEST(StepTable, DryRunSaysWhyOthersDoNotTakeACall) {
  const StepTable table = step_tables({.release = "flash",
                                       .formats = recipe_of_flags("k3-e4m3", ""),
                                       .gpu = "h200",
                                       .tokens = {4096}})
                              .front();
  for (const StepCalls& calls : table.calls) {
    for (const Refusal& refusal : calls.refusals)
      EXPECT_NE(refusal.reason, nullptr) << calls.op << "/" << refusal.impl;
    if (calls.op == "moe") {
      EXPECT_FALSE(calls.refusals.empty());
    }
  }
}
#else
TEST(StepTable, AGpuNeedsTheCudaBuild) {
  EXPECT_TRUE(test::says(
      test::error_of(ErrorCode::kUnsupported,
                     [] { step_tables({.release = "flash", .gpu = "h200", .tokens = {1}}); }),
      "use the one of the cuda preset"));
}
#endif

}  // namespace
}  // namespace dsv4
