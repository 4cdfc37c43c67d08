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

// FP4 experts have the kernels of k-bit ones: decode, and a prompt.
TEST(StepTable, DryRunOfFp4Experts) {
  for (const WeightFormat fp4 : {WeightFormat::kMxfp4, WeightFormat::kNvfp4}) {
    const std::vector<StepTable> tables = step_tables(
        {.release = "flash", .formats = {{}, fp4}, .gpu = "h200", .tokens = {1, 32, 4096}});
    EXPECT_EQ(counts_of(tables[0]).at("moe/sm90_fused"), 43);
    EXPECT_EQ(counts_of(tables[1]).at("moe/sm90_few"), 43);
    EXPECT_EQ(counts_of(tables[2]).at("experts/sm90_grouped"), 43);
  }
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
