// --gpus processes, processes:2,3 or processes:cpu: this process is one rank of a model, started by
// torchrun, mpirun or srun beside the others (docs/adr/0037). `run`, `eval`, `serve` and `bench`
// take it.
//
// Such a command has the same words on all ranks. Rank 0 goes through all of it.

#pragma once

#include <memory>
#include <string>

#include "apps/synthetic_model.h"
#include "dsv4/engine/device_model.h"

namespace dsv4::apps {

// Whether this process does what rank 0 sends it. A command that would do something before it loads
// its model, which rank 0 alone may do, asks this first.
bool follows(const std::string& device);

// A model with the ranks that the device names; devices: open_devices() of it. Where they are
// processes, this process' rank, after it has met the others; one that follows comes back by
// ExitStatus only, when rank 0 has ended.
Model load_ranks(const std::shared_ptr<const ModelSpec>& spec, const std::string& device,
                 const Devices& devices, DrafterKind drafter = DrafterKind::kNone);
// As load_ranks(), for a model with random weights.
Model synthetic_ranks(const SyntheticOptions& options, DrafterKind drafter,
                      const std::string& device, const Devices& devices,
                      ExpertsPlacement placement);

// Meets the other processes. what, placement, drafter: equal on all of them; device: the name, and
// what it opened
std::shared_ptr<RankProcesses> meet_ranks(const LaunchedRank& self, const std::string& what,
                                          const std::string& device, const Devices& devices,
                                          ExpertsPlacement placement = ExpertsPlacement::kSliced,
                                          DrafterKind drafter = DrafterKind::kNone);

// For commands that do not run over processes.
void refuse_processes(const std::string& device, const char* command);

}  // namespace dsv4::apps
