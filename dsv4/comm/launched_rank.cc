#include "dsv4/comm/launched_rank.h"

#include <charconv>

#include "dsv4/base/error.h"
#include "dsv4/base/quote.h"

namespace dsv4 {
namespace {

// The variables of a launcher; null: it has none. A host has all ranks where `hosts` is 1, or where
// `of_host` is their number.
struct Launcher {
  const char *rank, *world, *local_rank, *of_host, *hosts;
  const char* meeting[3];  // differs from job to job
};

constexpr Launcher kLaunchers[] = {
    {"RANK",
     "WORLD_SIZE",
     "LOCAL_RANK",
     "LOCAL_WORLD_SIZE",
     nullptr,
     {"MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID"}},
    {"OMPI_COMM_WORLD_RANK",
     "OMPI_COMM_WORLD_SIZE",
     "OMPI_COMM_WORLD_LOCAL_RANK",
     "OMPI_COMM_WORLD_LOCAL_SIZE",
     nullptr,
     {"PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "MASTER_PORT"}},
    {"SLURM_PROCID",
     "SLURM_NTASKS",
     "SLURM_LOCALID",
     nullptr,
     "SLURM_NNODES",
     {"SLURM_JOB_ID", "SLURM_STEP_ID", "MASTER_PORT"}},
};

constexpr int kMostRanks = 64;

using Env = std::function<std::string(const char*)>;

int number(const Env& env, const char* name, int low, int high) {
  const std::string text = env(name);
  int value = 0;
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc() || stop != end || value < low || value > high)
    fail(ErrorCode::kBadInput, "{} is '{}': want a number from {} to {}", name, quotable(text), low,
         high);
  return value;
}

std::string meeting_of(const Launcher& launcher, const Env& env) {
  std::string meeting;
  for (const char* name : launcher.meeting)
    if (const std::string value = env(name); !value.empty()) meeting += value + " ";
  if (meeting.empty())
    fail(ErrorCode::kBadInput,
         "{} is set, but nothing that is of this job alone: set MASTER_PORT to a number of "
         "its own",
         launcher.rank);
  return meeting;
}

}  // namespace

LaunchedRank launched_rank(const Env& env) {
  for (const Launcher& launcher : kLaunchers) {
    if (env(launcher.rank).empty() || env(launcher.world).empty()) continue;
    LaunchedRank self;
    self.id.world = number(env, launcher.world, 1, kMostRanks);
    self.id.rank = number(env, launcher.rank, 0, self.id.world - 1);
    const bool local = !env(launcher.local_rank).empty();
    self.local_rank = local ? number(env, launcher.local_rank, 0, self.id.world - 1) : self.id.rank;
    const auto says = [&](const char* name, int want) {
      return name == nullptr || env(name).empty() || number(env, name, 1, 1 << 20) == want;
    };
    if (!says(launcher.of_host, self.id.world) || !says(launcher.hosts, 1))
      fail(ErrorCode::kUnsupported,
           "{} ranks on several hosts: a model is divided inside one host, and replicas serve from "
           "several",
           self.id.world);
    self.meeting = meeting_of(launcher, env);
    return self;
  }
  fail(ErrorCode::kBadInput,
       "no {}: start the program with torchrun, mpirun or srun, which say which rank a process is",
       "RANK and WORLD_SIZE");
}

}  // namespace dsv4
