// Which rank this process is, as its launcher says in the environment, and a name at which the
// ranks of one job meet.
//
//   torchrun   RANK, WORLD_SIZE, LOCAL_RANK; MASTER_ADDR, MASTER_PORT, TORCHELASTIC_RUN_ID
//   Open MPI   OMPI_COMM_WORLD_RANK, _SIZE, _LOCAL_RANK, _LOCAL_SIZE; PMIX_NAMESPACE
//   Slurm      SLURM_PROCID, SLURM_NTASKS, SLURM_LOCALID, SLURM_NNODES; SLURM_JOB_ID, SLURM_STEP_ID
//
// Those of torchrun come first, also where another launcher started it or a user set them. All
// ranks are processes of one host.

#pragma once

#include <functional>
#include <string>

#include "dsv4/comm/shard_id.h"

namespace dsv4 {

struct LaunchedRank {
  ShardId id;
  int local_rank = 0;   // which GPU
  std::string meeting;  // equal for the ranks of a job, and for no others of this user and host
};

// env: the value of a variable, empty where it is not set. Throws kBadInput where it names no rank,
// or where ranks are on several hosts.
LaunchedRank launched_rank(const std::function<std::string(const char*)>& env);

}  // namespace dsv4
