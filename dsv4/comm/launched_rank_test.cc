// What launchers set, and what is refused.

#include "dsv4/comm/launched_rank.h"

#include <gtest/gtest.h>

#include <map>

#include "dsv4/base/error.h"

namespace dsv4 {
namespace {

using Variables = std::map<std::string, std::string>;

LaunchedRank rank_of(const Variables& variables) {
  return launched_rank([&](const char* name) {
    const auto found = variables.find(name);
    return found == variables.end() ? std::string() : found->second;
  });
}

std::string refusal(const Variables& variables) {
  try {
    rank_of(variables);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

const Variables kTorchrun = {{"RANK", "1"},           {"WORLD_SIZE", "2"},
                             {"LOCAL_RANK", "1"},     {"LOCAL_WORLD_SIZE", "2"},
                             {"MASTER_ADDR", "here"}, {"MASTER_PORT", "29500"}};
const Variables kMpirun = {{"OMPI_COMM_WORLD_RANK", "2"},
                           {"OMPI_COMM_WORLD_SIZE", "3"},
                           {"OMPI_COMM_WORLD_LOCAL_RANK", "2"},
                           {"OMPI_COMM_WORLD_LOCAL_SIZE", "3"},
                           {"PMIX_NAMESPACE", "prterun-7@1"}};
const Variables kSrun = {{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "4"},  {"SLURM_LOCALID", "0"},
                         {"SLURM_NNODES", "1"}, {"SLURM_JOB_ID", "77"}, {"SLURM_STEP_ID", "0"}};

Variables with(Variables variables, const std::string& name, const std::string& value) {
  variables[name] = value;
  return variables;
}

TEST(LaunchedRank, EveryLauncher) {
  EXPECT_EQ(rank_of(kTorchrun).id, (ShardId{1, 2}));
  EXPECT_EQ(rank_of(kTorchrun).local_rank, 1);
  EXPECT_EQ(rank_of(kMpirun).id, (ShardId{2, 3}));
  EXPECT_EQ(rank_of(kMpirun).local_rank, 2);
  EXPECT_EQ(rank_of(kSrun).id, (ShardId{0, 4}));
  // Variables of torchrun come first.
  Variables both = kSrun;
  both.insert(kTorchrun.begin(), kTorchrun.end());
  EXPECT_EQ(rank_of(both).id, (ShardId{1, 2}));
  // Without LOCAL_RANK all are of this host.
  EXPECT_EQ(rank_of({{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"MASTER_PORT", "1"}}).local_rank, 1);
}

TEST(LaunchedRank, JobsMeetApart) {
  const std::string one = rank_of(kTorchrun).meeting;
  EXPECT_EQ(rank_of(with(kTorchrun, "RANK", "0")).meeting, one);
  EXPECT_NE(rank_of(with(kTorchrun, "MASTER_PORT", "29501")).meeting, one);
  EXPECT_NE(rank_of(with(kTorchrun, "TORCHELASTIC_RUN_ID", "x")).meeting, one);
  EXPECT_NE(rank_of(with(kSrun, "SLURM_STEP_ID", "1")).meeting, rank_of(kSrun).meeting);
  EXPECT_NE(rank_of(with(kMpirun, "PMIX_NAMESPACE", "x")).meeting, rank_of(kMpirun).meeting);
}

TEST(LaunchedRank, WhatIsRefused) {
  EXPECT_EQ(refusal({}),
            "no RANK and WORLD_SIZE: start the program with torchrun, mpirun or srun, which say "
            "which rank a process is");
  EXPECT_EQ(refusal({{"RANK", "0"}}), refusal({})) << "a rank of nothing";
  EXPECT_EQ(refusal(with(kTorchrun, "RANK", "2")), "RANK is '2': want a number from 0 to 1");
  EXPECT_EQ(refusal(with(kTorchrun, "RANK", "-1")), "RANK is '-1': want a number from 0 to 1");
  EXPECT_EQ(refusal(with(kTorchrun, "RANK", "1x")), "RANK is '1x': want a number from 0 to 1");
  EXPECT_EQ(refusal(with(kTorchrun, "WORLD_SIZE", "65")),
            "WORLD_SIZE is '65': want a number from 1 to 64");
  EXPECT_EQ(refusal({{"RANK", "0"}, {"WORLD_SIZE", "2"}}),
            "RANK is set, but nothing that is of this job alone: set MASTER_PORT to a number "
            "of its own");
  const std::string hosts =
      " ranks on several hosts: a model is divided inside one host, and replicas serve from "
      "several";
  EXPECT_EQ(refusal(with(kTorchrun, "LOCAL_WORLD_SIZE", "1")), "2" + hosts);
  EXPECT_EQ(refusal(with(kMpirun, "OMPI_COMM_WORLD_LOCAL_SIZE", "2")), "3" + hosts);
  EXPECT_EQ(refusal(with(kSrun, "SLURM_NNODES", "2")), "4" + hosts);
}

}  // namespace
}  // namespace dsv4
