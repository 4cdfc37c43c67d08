// --gpus: a model divided over ranks on the CPU says what it says on one, and what cannot run is
// refused with one line.

#include <nlohmann/json.hpp>

#include "tests/cli/cli.h"

namespace dsv4 {
namespace {

class CliRanks : public test::Cli {
 protected:
  // One line, so nothing of a failed start is left behind.
  void expect_refused(const std::string& gpus, const std::string& text) const {
    expect_error("run demo -p a -n 1 --gpus " + gpus, text);
    expect_error("eval ppl demo --ids 1,2,3 --gpus " + gpus, text);
  }
};

TEST_F(CliRanks, AnswersAreThoseOfOneRank) {
  const std::string run = "run demo -p 'Once upon a time' -n 40 --seed 7 --speculate off ";
  const test::CliResult one = dsv4(run);
  ASSERT_EQ(one.exit_code, 0) << one.err;
  ASSERT_GT(one.out.size(), 50u);
  for (const char* ranks : {"cpu,cpu", "cpu,cpu,cpu"})
    EXPECT_EQ(dsv4(run + "--gpus " + ranks).out, one.out) << ranks;
  EXPECT_EQ(dsv4(run + "--device cpu,cpu").out, one.out);
  EXPECT_EQ(dsv4(run + "--gpus cpu,cpu,cpu --experts-placement whole").out, one.out);
  for (const char* drafts :
       {"--speculate mtp --draft-tokens 2", "--speculate mtp", "--speculate auto"}) {
    const test::CliResult guessed = dsv4(
        fmt::format("run demo -p 'Once upon a time' -n 40 --seed 7 {} --gpus cpu,cpu,cpu", drafts));
    EXPECT_EQ(guessed.out, one.out) << drafts;
    EXPECT_EQ(guessed.err.find("note"), std::string::npos) << guessed.err;
    EXPECT_NE(guessed.err.find("tokens a round of"), std::string::npos) << guessed.err;
  }
  const auto nll = [&](const std::string& ranks) {
    std::string ids = "5";
    for (int id = 6; id < 150; ++id) ids += fmt::format(",{}", id);
    const test::CliResult result = dsv4("eval ppl demo --json --ids " + ids + ranks);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return nlohmann::json::parse(result.out).at("nll").get<double>();
  };
  const double want = nll("");
  EXPECT_EQ(nll(" --gpus cpu,cpu"), want);
  EXPECT_EQ(nll(" --gpus cpu,cpu --experts-placement whole"), want);
}

TEST_F(CliRanks, ChatAnswersAsOnOneRank) {
  std::ofstream(folder_ / "input") << "Once upon a time\nand then\n";
  const auto chat = [&](const std::string& ranks) {
    const test::CliResult result =
        shell(fmt::format("{} chat demo --temp 0 --context 96 {} <{}", DSV4_BINARY, ranks,
                          (folder_ / "input").string()));
    EXPECT_EQ(result.exit_code, 0) << ranks << result.err;
    return result.out;
  };
  const std::string one = chat("--device cpu");
  EXPECT_GT(one.size(), 20u);
  EXPECT_EQ(chat("--gpus cpu,cpu"), one);
  EXPECT_EQ(chat("--gpus cpu,cpu,cpu --experts-placement whole"), one);
}

TEST_F(CliRanks, BenchmarksRun) {
  for (const char* what : {"decode demo --context 64 --steps 3", "prefill demo --tokens 64"}) {
    const test::CliResult result = dsv4(fmt::format("bench {} --gpus cpu,cpu --json", what));
    EXPECT_EQ(result.exit_code, 0) << what << result.err;
  }
  const test::CliResult rounds = dsv4(
      "bench decode demo --context 64 --steps 2 --speculate mtp --draft-tokens 2 --accept 0.8,0.6 "
      "--gpus cpu,cpu --json");
  ASSERT_EQ(rounds.exit_code, 0) << rounds.err;
  EXPECT_EQ(nlohmann::json::parse(rounds.out).at("ranks"), 2);
  const test::CliResult whole = dsv4(
      "bench decode demo --context 64 --steps 3 --gpus cpu,cpu --experts-placement whole --json");
  ASSERT_EQ(whole.exit_code, 0) << whole.err;
  EXPECT_EQ(nlohmann::json::parse(whole.out).at("experts_placement"), "whole");
}

TEST_F(CliRanks, ListsThatCannotRunAreRefused) {
  expect_refused("cpu,0", "a model over 2 devices, of which 1 are GPUs: want GPUs alone");
  expect_refused("9", "--gpus 9: 9 GPUs, at most 8 share a model");
  expect_refused("0x2", "--gpus '0x2': want a number of GPUs, all, a list");
  expect_refused("cpu,", "--gpus 'cpu,': want a number of GPUs");
  expect_refused("0", "--gpus '0': want a number of GPUs");
  expect_refused("cpu,cpu --experts-placement half", "--experts-placement: half not in");
  expect_refused("cpu,cpu --experts-placement whole --experts-memory auto",
                 "--experts-placement whole is for ranks: leave one of the two out");
  expect_error("run demo -p a --device cpu,gpu", "no device 'gpu' in a list of 2");
#if !DSV4_CUDA
  expect_refused("all", "--gpus all: no CUDA GPU here");
  for (const char* gpus : {"2", "0,0"})
    expect_refused(gpus, "--device cuda:0: this program was built without CUDA");
#endif
}

TEST_F(CliRanks, PlanShowsEveryRank) {
  const test::CliResult result = dsv4("plan demo --gpus 4xh200 --context 1000 --json");
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const auto plan = nlohmann::json::parse(result.out);
  ASSERT_EQ(plan.at("ranks").size(), 4u);
  for (const auto& rank : plan.at("ranks")) {
    EXPECT_LT(rank.at("weights_bytes"), plan.at("weights_bytes"));
    EXPECT_EQ(rank.at("cache_bytes"), plan.at("cache_bytes"));
    EXPECT_GT(rank.at("received_bytes_per_token"), 0);
    EXPECT_GT(rank.at("received_bytes_per_prompt_token"), 0);
  }
  // Two groups of heads and two blocks of an expert's rows: rank 0 of four owns none of them.
  EXPECT_LT(plan.at("ranks")[0].at("own_bytes"), plan.at("ranks")[1].at("own_bytes"));
  EXPECT_NE(dsv4("plan demo --gpus 4xh200 --context 1000").out.find("received per token"),
            std::string::npos);
  // Eight experts are two for each rank, whatever their rows.
  const test::CliResult whole =
      dsv4("plan demo --gpus 4xh200 --context 1000 --json --experts-placement whole");
  ASSERT_EQ(whole.exit_code, 0) << whole.err;
  const auto ranks = nlohmann::json::parse(whole.out).at("ranks");
  EXPECT_GT(ranks[0].at("own_bytes"), plan.at("ranks")[0].at("own_bytes"));
}

}  // namespace
}  // namespace dsv4
