// dsv4 bench and dsv4 inspect device, on a machine with or without a GPU.

#include <nlohmann/json.hpp>

#include "tests/cli/cli.h"

namespace dsv4 {
namespace {

using Json = nlohmann::json;
using test::CliResult;

class CliBench : public test::Cli {};

TEST_F(CliBench, BenchDecodeReportsEveryCombination) {
  const CliResult result = dsv4("bench decode demo --batch 1,2 --context 64,300 --steps 2 --json");
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const Json report = Json::parse(result.out);
  EXPECT_EQ(report.at("device"), "cpu");
  ASSERT_EQ(report.at("results").size(), 4u);
  for (const Json& row : report.at("results")) {
    const double batch = row.at("batch"), time = row.at("ms_per_step");
    EXPECT_GT(time, 0);
    EXPECT_NEAR(row.at("tokens_per_second").get<double>() * time / (1000 * batch), 1, 1e-6);
    EXPECT_TRUE(row.at("memory").is_null()) << "there is no device";
    EXPECT_GE(row.at("distinct_experts").get<double>(), 1);
    EXPECT_GT(row.at("read_bytes").get<double>(), 0);
  }
  // Two tokens read at most twice the experts of one token, and the other weights once.
  const double one = report["results"][0]["weight_bytes"],
               two = report["results"][1]["weight_bytes"];
  EXPECT_GT(two, one);
  EXPECT_LT(two, 2 * one);
}

// Drafts hold by chance, so what a round gives is known; a list with 0 has the plain steps too.
TEST_F(CliBench, BenchDecodeMeasuresRounds) {
  const CliResult result = dsv4(
      "bench decode demo --batch 1,2 --context 64 --steps 3 --draft-tokens 0,2,3 --accept 0.5,1 "
      "--json");
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const Json report = Json::parse(result.out);
  ASSERT_EQ(report.at("results").size(), 6u);
  for (const Json& row : report.at("results")) {
    if (!row.contains("draft_tokens")) {
      EXPECT_GT(row.at("ms_per_step").get<double>(), 0);
      EXPECT_EQ(row.at("logits_sha256").get<std::string>().size(), 16u);
      continue;
    }
    const double batch = row.at("batch"), drafts = row.at("draft_tokens"),
                 time = row.at("ms_per_round"), expected = row.at("expected_tokens_per_round");
    EXPECT_EQ(expected, 1 + 0.5 * drafts);
    EXPECT_GE(row.at("tokens_per_round").get<double>(), 1);
    EXPECT_LE(row.at("tokens_per_round").get<double>(), 1 + drafts);
    EXPECT_NEAR(row.at("tokens_per_second").get<double>() * time / (1000 * batch * expected), 1,
                1e-6);
    EXPECT_LT(row.at("draft_ms").get<double>(), time);
  }
}

// A step without rounds has the same bits whether rounds are measured beside it or not.
TEST_F(CliBench, RoundsLeavePlainStepsAsTheyAre) {
  const auto digest = [&](const std::string& more) {
    const CliResult result =
        dsv4("bench decode demo --context 64 --steps 2 --deterministic --json" + more);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return Json::parse(result.out).at("results").back().at("logits_sha256").get<std::string>();
  };
  EXPECT_EQ(digest(""), digest(" --draft-tokens 7,0 --accept 0.9"));
}

TEST_F(CliBench, RoundsByABlock) {
  const CliResult result = dsv4(
      "bench decode demo --context 64 --steps 2 --speculate mtp --draft-tokens 3 --accept 0 "
      "--json");
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const Json row = Json::parse(result.out).at("results").at(0);
  EXPECT_EQ(row.at("drafts_from"), "mtp");
  EXPECT_EQ(row.at("tokens_per_round"), 1);
  EXPECT_GT(row.at("draft_ms").get<double>(), 0.02 * row.at("ms_per_round").get<double>());
}

TEST_F(CliBench, RefusesRoundsThatSayTooLittle) {
  expect_error("bench decode demo --draft-tokens 2", "add --accept");
  expect_error("bench decode demo --accept 0.5", "require --draft-tokens");
  expect_error("bench decode demo --speculate mtp", "require --draft-tokens");
  expect_error("bench decode demo --draft-tokens 8 --accept 1", "want numbers from 0 to 7");
  expect_error("bench decode demo --draft-tokens 2 --accept 1.5", "want numbers from 0 to 1");
  expect_error("bench decode demo --draft-tokens 2 --accept 0.5,", "want numbers from 0 to 1");
  expect_error("bench decode demo --draft-tokens 1 --accept 1 --speculate dspark",
               "has no DSpark drafter");
  expect_error("bench decode demo --draft-tokens 1 --accept 1 --speculate eagle", "--speculate");
}

TEST_F(CliBench, TakesChoicesOfImplementations) {
  const CliResult result = dsv4(
      "bench decode demo --batch 1 --context 64 --steps 1 --impl moe=parts --impl linear=cpu "
      "--ops --json");
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_NE(result.out.find("linear/cpu"), std::string::npos) << result.out;
}

TEST_F(CliBench, BenchPrefillUsesChunks) {
  const CliResult result = dsv4("bench prefill demo --tokens 100,130 --chunk 64 --json");
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const Json report = Json::parse(result.out);
  ASSERT_EQ(report.at("results").size(), 2u);
  EXPECT_EQ(report["results"][1].at("tokens"), 130);
  EXPECT_EQ(report["results"][1].at("chunk"), 64);
  EXPECT_GT(report["results"][1].at("flops").get<double>(), 0);
}

TEST_F(CliBench, BenchCacheRunsEveryScenario) {
  std::filesystem::create_directory(path("disk"));
  const CliResult result = dsv4(
      "bench cache demo --head 140 --turns 2 --new 150 --answer 2 --conversations 2 "
      "--memory-turns 1 --clients 2 --client-prompt 20 --client-answer 4 --long-prompt 300 "
      "--max-batch-tokens 512 --ram-cache 0.1 --disk-cache " +
      path("disk") + " --json");
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const Json results = Json::parse(result.out).at("results");
  ASSERT_EQ(results.size(), 3u);
  const Json& tiers = results[0].at("tiers");
  ASSERT_EQ(tiers.size(), 4u);
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_GT(tiers[i].at("ratio_p50").get<double>(), 0);
    EXPECT_EQ(tiers[i].at("computed_tokens").size(), 2u);
  }
  EXPECT_GT(tiers[3].at("tokens_from_disk").get<int64_t>(), 0);
  EXPECT_GT(results[1].at("ratio").get<double>(), 0);
  EXPECT_GT(results[2].at("itl_ms").at("count").get<int64_t>(), 0);
  EXPECT_TRUE(std::filesystem::is_empty(path("disk"))) << "the folder of the disk tier is gone";
  expect_error("bench cache demo --scenario none", "--scenario");
  expect_error("bench cache demo --disk-cache /none", "--disk-cache /none");
}

TEST_F(CliBench, BenchPrintsOneLinePerResult) {
  const CliResult result = dsv4("bench decode demo --context 64 --steps 1");
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_NE(result.out.find("batch   1, context      64:"), std::string::npos) << result.out;
}

TEST_F(CliBench, BenchUsageErrors) {
  expect_error("bench decode", "either a model or --synthetic");
  expect_error("bench decode demo --synthetic flash", "either a model or --synthetic");
  expect_error("bench decode --synthetic flash", "add --device cuda");
  expect_error("bench decode --synthetic small", "--synthetic");
  expect_error("bench decode demo --batch 1,x", "--batch 1,x: want numbers from 1 to 1048576");
  expect_error("bench prefill demo --tokens 0", "--tokens 0: want numbers from 1 to 1073741824");
  expect_error("bench prefill demo --tokens 5,", "--tokens 5,: want numbers from 1");
  expect_error("bench decode demo --batch 9223372036854775807", "want numbers from 1 to 1048576");
  expect_error("bench decode demo --experts k3", "require --synthetic: demo has fixed formats");
  expect_error("bench link --device cpu", "between host memory and a GPU: give --device cuda");
  expect_error("bench link --device cpu,cpu", "one device, not cpu,cpu");
  expect_error("bench link --ctas 0", "--ctas");
  expect_error("bench exchange --device cpu", "bench exchange needs several GPUs");
  for (const char* shard : {"2/2", "-1/2", "0/9", "0", "0/2x", "a/b"})
    expect_error(std::string("bench decode --synthetic flash --shard=") + shard, "want R/N");
  expect_error("bench decode demo --device cpu --shard 0/2", "a rank of a --synthetic model");
  expect_error("bench prefill demo --layers 2", "require --synthetic");
  expect_error("bench decode demo --routing zipf:1", "require --synthetic");
  expect_error("bench decode demo --trace file.json --steps 1 --context 64", "no trace");
  expect_error("bench frobnicate demo", "no command 'frobnicate'");
}

TEST_F(CliBench, InspectDeviceListsGpus) {
  const CliResult result = dsv4("inspect device --json");
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const Json report = Json::parse(result.out);
  for (const Json& device : report.at("devices")) {
    EXPECT_GT(device.at("memory_bytes").get<int64_t>(), 0);
    EXPECT_GT(device.at("processors").get<int>(), 0);
  }
  EXPECT_EQ(dsv4("inspect device").exit_code, 0);
}

}  // namespace
}  // namespace dsv4
